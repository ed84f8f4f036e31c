"""What was measured before is read only where it is of the same settings, such as the weights."""

import pytest

from atat_zoo.evaluation.results.store import files, kept, once
from atat_zoo.experiment.runs import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def test_other_settings_are_measured_anew(run):
    values = iter(range(9))

    def measured(what="bounds", **settings):
        return once(run, what, settings, lambda table: table["value"], lambda: {"value": next(values)})

    settings = {"weights": "first", "bound": {"use": "exact_k", "steps": (1, 2)}}
    assert [measured(**settings), measured(**settings)] == [0, 0]
    assert measured(**settings | {"draws": 3}) == 1
    assert measured("times", **settings) == 2
    assert measured(**settings | {"weights": "trained longer"}) == 3
    assert measured(**settings) == 0


def test_a_file_says_itself_what_it_is_of(run):
    """Its name has eight digits of a hash, and a file can be copied."""
    one, other = (run, "bounds", {"draws": 2}), (run, "bounds", {"draws": 3})
    once(*one, dict, lambda: {"value": 1})
    (path,) = files(run)
    once(*other, dict, lambda: {"value": 2})
    path.rename(next(file for file in files(run) if file != path))
    assert kept(*other, dict) is None
    assert once(*other, dict, lambda: {"value": 2})["value"] == 2
