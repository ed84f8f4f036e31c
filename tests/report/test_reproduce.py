"""The commands that make a page again: all of them work in one folder, with what the page was asked for."""

import shlex
from pathlib import Path

import pytest

from atat_zoo.report.reproduce import command, commands
from tests.report.run_folders import make
from tests.report.test_report_page import given


@pytest.mark.parametrize(
    ("train", "run"),
    [
        ("atat train z.toml --out full", "full"),
        ("atat train z.toml --out=full", "./full"),
        ("atat train mdlm", "runs/mdlm"),
    ],
)
def test_where_the_runs_were_trained_they_are_named_as_they_were_given(tmp_path, monkeypatch, train, run):
    monkeypatch.chdir(tmp_path)
    found = commands([Path(run)], [train], False, out=None, figures=None)
    assert found == [train, f"atat eval {Path(run)}", f"atat report {Path(run)} --compute"]


def test_elsewhere_every_path_but_those_of_the_training_is_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, train = [Path("zst/full"), Path("zst/a run")], ["atat train z.toml --out full", None]
    note, *found = commands(runs, train, True, out=Path("page.html"), figures=Path("charts"))
    assert note == "# In the folder where the runs were trained, where the paths of `atat train` begin:"
    full, other = f"{tmp_path}/zst/full", shlex.quote(f"{tmp_path}/zst/a run")
    assert found == [
        train[0],
        f"atat eval {full}",
        f"atat eval {other}",
        f"atat compare {full} {other}",
        f"atat report {full} {other} --compute --frontier --out {tmp_path}/page.html --figures {tmp_path}/charts",
    ]


@pytest.mark.parametrize("recorded", [{}, {"command": 3}, {"command": []}])
def test_a_command_that_is_not_recorded_is_none(recorded):
    assert command(recorded) is None


def test_a_run_of_the_launcher_is_made_by_it():
    recorded = {"command": ["/a/atat_zoo/train.py", "mdlm", "--out", "a b"], "computes": {"ranks": 2}}
    assert command(recorded) == "composer -n 2 -m atat_zoo.train mdlm --out 'a b'"
    recorded["command"][0] = "/a/atat_zoo/__main__.py"
    assert command(recorded) == "atat mdlm --out 'a b'"


def test_the_page_has_the_options_that_it_was_asked_for_with(atat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(Path("runs/it"))
    assert atat("report", "runs/it", "--out", "page.html")[0] == 0
    train, *found = given(Path("page.html").read_text())["data"]["commands"]
    assert train == "atat train documented/atat --out runs/it"
    assert found == ["atat eval runs/it", "atat report runs/it --compute --frontier --out page.html"]
