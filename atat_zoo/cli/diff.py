"""`atat diff`: what differs between two runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import print_json, printable, table
from atat_zoo.cli.ls import bound_text
from atat_zoo.report.runs import environment, side_by_side
from atat_zoo.results.format import NONE
from atat_zoo.run import RunFolder
from atat_zoo.run.changes import changes

if TYPE_CHECKING:
    from atat_zoo.report.runs import SameText


@click.command()
@click.argument("runs", nargs=2, type=click.Path(path_type=Path), metavar="RUN RUN")
@options("json")
def diff(runs: tuple[Path, Path], as_json: bool) -> None:
    """Say what differs between the experiments and the environments of two runs, and how they compare.

    The bounds are those that both have recorded on the same text under the same masks; `atat compare` measures the
    final models, and gives the difference with its interval.
    """
    folders = [RunFolder(path) for path in runs]
    environments = [environment(folder) for folder in folders]
    tables = {
        what: {key: [here, there] for key, here, there, _ in changes(one, other)}
        for what, (one, other) in {"experiment": [run.table() for run in folders], "environment": environments}.items()
    }
    same = side_by_side(folders)
    if as_json:
        print_json({"runs": [str(path) for path in runs], **tables, "bounds": [attrs.asdict(each) for each in same]})
        return
    names = [path.resolve().name for path in runs]
    names = names if names[0] != names[1] else [str(path) for path in runs]
    for what, differing in tables.items():
        if differing:
            table([what, *names], [[key, *map(_cell, values)] for key, values in differing.items()])
        elif what == "environment" and not any(environments):
            click.echo("the environments are not recorded")
        else:
            click.echo(f"the {what}s do not differ")
        click.echo("")
    if same:
        table(["bound", *names], [[_text(each), *map(bound_text, each.bounds)] for each in same])
    command = printable(shlex.join(["atat", "compare", *map(str, runs)]))
    click.echo(
        f"`{command}` measures the difference with its interval."
        if same
        else f"no bound is recorded for both on the same text and masks: `{command}` measures it"
    )


def _cell(value: Any) -> str:
    if value is None:
        return NONE
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _text(same: SameText) -> str:
    masks = f" × {same.draws} draws, seed {same.seed}" if same.draws else ", exact"
    steps = " and ".join(dict.fromkeys(str(bound.step) for bound in same.bounds))
    return f"{same.split}, {same.sequences} sequences{masks}, step {steps}"
