"""Shards made of a corpus in memory."""

import pytest
from in_memory import experiment_of

from atat_zoo.data.build import build


@pytest.fixture
def experiment(tmp_path):
    return lambda **settings: experiment_of(tmp_path / "data", **settings)


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """A folder of shards of bytes, 16 a sequence, cut for 4 lanes, whose number is no multiple of 4."""
    return build(experiment_of(tmp_path_factory.mktemp("shards")))
