"""A tiny model, and a client of it in this process."""

import pytest

from tests.model.making import tiny_model
from tests.serving.making import in_process, served


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def client(model):
    with in_process(served(model)) as made:
        yield made
