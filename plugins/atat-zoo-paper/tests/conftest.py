"""What the tests of atat-zoo share is used here, too."""

import sys
from pathlib import Path

import pytest

# The checkout comes last, so that an installed atat_zoo is tested, and not the one beside these tests.
sys.path.append(str(next(path for path in Path(__file__).parents if (path / "tests" / "__init__.py").exists())))

from manifests import Place

from tests.conftest import atat, pytest_configure, pytest_runtest_setup, tiny

__all__ = ["atat", "place", "pytest_configure", "pytest_runtest_setup", "tiny"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)
