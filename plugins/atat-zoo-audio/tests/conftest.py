"""A model that is trained once for all tests."""

import pytest
from sounds import experiment

from atat_zoo import training


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run of `melodies_sets` after four steps; the tests' working folder has its shards."""
    folder = tmp_path_factory.mktemp("runs")
    changes = ("train.steps=4", "train.evaluate_every=2", "train.save_every=4", "evaluation.sequences=6")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        training.train(experiment("melodies_sets", *changes), folder / "sets")
        yield folder / "sets"
