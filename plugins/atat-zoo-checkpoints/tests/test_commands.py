"""`atat import` and `atat export` replace nothing that they read and no file of a run, and their page is true."""

import json
from pathlib import Path

import pytest
from atat_zoo_checkpoints.model_import import import_model

from atat_zoo import UserError
from tests import pages
from tests.cli.terminal import refused
from tests.evaluation.making import make_run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import model.ckpt model.ckpt", "RUN model.ckpt: the command reads model.ckpt"),
        ("import elsewhere run/model/x", "belongs to the run"),
        ("export run run/checkpoints/hub", "belongs to the run"),
    ],
)
def test_nothing_that_is_read_and_no_file_of_a_run_is_written(line, said, tmp_path, atat, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("run/resolved.toml", "model.ckpt"):
        (tmp_path / name).write_text("")
    assert said in refused(atat, *line.split())


@pytest.mark.parametrize("model", ["run/model", "run", "./run/model/model.json"])
def test_a_run_is_not_replaced_by_a_model_of_its_own(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("run/model/model.json")
    file.parent.mkdir(parents=True)
    for path in (file, Path("run/resolved.toml")):
        path.write_text("{}")
    with pytest.raises(UserError, match="run is the folder of the model itself; choose a different folder"):
        import_model(model, Path("run"), overwrite=True)
    assert json.loads(file.read_text()) == {}


@pytest.mark.slow
def test_the_blocks_of_the_page_do_what_they_say(tmp_path):
    make_run(tmp_path / "runs", "quickstart", "mdlm")
    pages.carry_out(pages.ROOT / "docs" / "how-to" / "exporting.md", tmp_path)
