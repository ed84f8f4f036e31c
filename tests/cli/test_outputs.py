"""No command writes what it reads, or over a file of a run."""

import os
from pathlib import Path

import click
import pytest

from atat_zoo.cli import COMMANDS
from atat_zoo.cli import atat as group
from atat_zoo.cli.arguments import Output, check_output
from tests.cli.terminal import refused

# The paths that are read, or name a folder whose files are not replaced.
READ = {"run", "runs", "file", "folder", "baseline", "resume", "where"}


def commands(command=group, words=()):
    """Yield every command of the zoo with the words that name it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name in COMMANDS if command is group else command.list_commands(click.Context(command)):
        yield from commands(command.get_command(click.Context(command), name), (*words, name))


def test_every_path_that_is_written_is_guarded():
    paths = {(words, p.name): p.type for words, each in commands() for p in each.params if type(p.type) is click.Path}
    assert {name for _, name in paths} == READ
    outputs = {(*words, p.name) for words, each in commands() for p in each.params if isinstance(p.type, Output)}
    expected = {("train", "out"), ("study", "page"), ("report", "figures"), ("report", "out")}
    assert outputs == {*expected, ("sample", "trace")}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a run and a study, neither of which has to be in order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "report").mkdir()
    for name in ("run/resolved.toml", "run/model/model.json", "run/report/spread.html"):
        (tmp_path / name).write_text("{}")
    for name in ("study.md", "page.html"):
        (tmp_path / name).write_text("")
    (tmp_path / "link.jsonl").symlink_to("run/resolved.toml")
    os.link(tmp_path / "study.md", tmp_path / "same.md")
    return tmp_path


READS = [
    ("study study.md --write study.md", "--write study.md: the command reads study.md; pass another path"),
    ("study study.md --write ./study.md", "--write study.md: the command reads study.md"),
    ("study study.md --write same.md", "--write same.md: the command reads study.md"),
    ("report page.html --out page.html", "--out page.html: the command reads page.html"),
]
OF_A_RUN = [
    "sample run --trace run/resolved.toml",
    "sample other --trace run/resolved.toml",
    "sample run --trace run/./model/model.json",
    "sample run --trace link.jsonl",
    "study study.md --write run/model/model.md",
    "train quickstart --out run/logs/x",
    "report run --figures run/model",
    "report run --out run/report/spread.html",
]


@pytest.mark.parametrize(
    ("line", "said"),
    [*READS, *((line, "belongs to the run {run}; pass another path to write to") for line in OF_A_RUN)],
)
def test_neither_what_is_read_nor_a_file_of_a_run_is_written(place, atat, line, said):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert said.format(run=place / "run") in refused(atat, *line.split())
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_what_others_put_into_a_run_folder_may_be_written(place):
    reads = ["run", ("run/resolved.toml", "", "\0", "x" * 5000), 3, None]
    for name in ("run/report.html", "run/report/figures", "run/mine/steps.jsonl", ".", "new"):
        check_output(Path(name), "--out", reads)
    check_output(None, "--out", ["run"])
