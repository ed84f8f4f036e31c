"""What was measured before is read only where it is of these weights and these settings."""

from types import SimpleNamespace

import pytest

from atat_zoo.run import RunFolder
from atat_zoo.run.model_files import WEIGHTS
from atat_zoo.study.measuring import _file, _kept, _once


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path)
    (folder.model / WEIGHTS).parent.mkdir()
    (folder.model / WEIGHTS).write_bytes(b"first")
    return SimpleNamespace(folder=folder)


def test_other_weights_and_other_settings_are_measured_anew(run):
    values = iter(range(9))

    def measured(what="bounds", **settings):
        return _once(_file(run, what, **settings), lambda table: table["value"], lambda: {"value": next(values)})

    settings = {"draws": 2, "bound": {"use": "exact_k", "steps": (1, 2)}}
    assert [measured(**settings), measured(**settings)] == [0, 0]
    assert measured(**settings | {"draws": 3}) == 1
    assert measured("times", **settings) == 2
    (run.folder.model / WEIGHTS).write_bytes(b"trained longer")
    assert measured(**settings) == 3
    (run.folder.model / WEIGHTS).write_bytes(b"first")
    assert measured(**settings) == 0


def test_a_file_says_itself_what_it_is_of(run):
    """Its name has eight digits of a hash, and a file can be copied."""
    file, other = _file(run, "bounds", draws=2), _file(run, "bounds", draws=3)
    _once(file, dict, lambda: {"value": 1})
    file[0].rename(other[0])
    assert _kept(other, dict) is None
    assert _once(other, dict, lambda: {"value": 2})["value"] == 2
