"""A tiny model, and a client of it in this process. What the tests of atat-zoo share is used here, too."""

import sys
from pathlib import Path

import pytest

# The checkout comes last, so that an installed atat_zoo is tested, and not the one beside these tests.
sys.path.append(str(next(path for path in Path(__file__).parents if (path / "tests" / "__init__.py").exists())))

from servers import in_process, served

from tests.conftest import atat, pytest_configure, pytest_runtest_setup
from tests.generation.making import tiny_model

__all__ = ["atat", "pytest_configure", "pytest_runtest_setup"]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def client(model):
    with in_process(served(model)) as made:
        yield made
