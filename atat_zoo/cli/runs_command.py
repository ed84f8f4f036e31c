"""`atat ls` and `atat diff`: list the runs in a folder, and show the differences between two runs."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import print_json, printable, table
from atat_zoo.evaluation.results.format import NONE, lasting, size, uncertain
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.changes import changes
from atat_zoo.reports.run_list import (
    IMPORTED,
    STATES,
    ListedRun,
    RecordedBound,
    environment,
    find,
    glance,
    side_by_side,
)
from atat_zoo.system.errors import UserError, clip

# Runs without a bound come last.
_ORDERS: dict[str, Callable[[ListedRun], Any]] = {
    "name": lambda run: run.name,
    "age": lambda run: run.age,
    "bound": lambda run: run.bound.value if run.bound else float("inf"),
    "step": lambda run: -(run.step or 0),
}


@click.command()
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@click.option("--sort", type=click.Choice(list(_ORDERS)), default="name", show_default=True, help="Sort order.")
@click.option("--objective", help="Show only runs with this objective.")
@click.option("--state", type=click.Choice(STATES), help="Show only runs in this state.")
@options("json")
def ls(folder: Path, sort: str, objective: str | None, state: str | None, as_json: bool) -> None:
    """List the runs in FOLDER (default: runs), including those of studies.

    State: training (a process holds the run's lock), finished (the run has a final model), imported (by `atat import`),
    damaged (its files cannot be read) or stopped. Bound: the last one recorded, with its standard error over sequences.
    Age: the time since the last log entry.
    """
    if not folder.is_dir():
        raise UserError(f"{clip(folder)} is not a folder; pass a folder of runs")
    runs = [
        glance(path, folder.resolve().name if path == folder else str(path.relative_to(folder)))
        for path in find(folder)
    ]
    chosen = [run for run in runs if objective in (None, run.objective) and state in (None, run.state)]
    chosen.sort(key=lambda run: (_ORDERS[sort](run), run.name))
    if as_json:
        print_json([run.to_table() for run in chosen])
        return
    if not chosen:
        click.echo(f"none of the {len(runs)} runs in {folder} matches the options" if runs else f"no runs in {folder}")
        return
    rows = []
    for run in chosen:
        total = NONE if run.steps is None else run.steps
        steps = NONE if run.state == IMPORTED else f"{run.step}/{total}"
        rows.append([run.name, run.objective or NONE, steps, _bound_text(run.bound), lasting(run.age), run.state])
    table(["run", "objective", "step", "held-out", "age", "state"], rows)
    for run in chosen:
        if run.problem:
            click.echo(f"{printable(run.name)}: {printable(run.problem)}")


def _bound_text(bound: RecordedBound | None) -> str:
    return NONE if bound is None else f"{bound.quantity} {uncertain(bound.value, bound.stderr)}"


@click.command()
@click.argument("runs", nargs=2, type=click.Path(path_type=Path), metavar="RUN RUN")
@options("json")
def diff(runs: tuple[Path, Path], as_json: bool) -> None:
    """Show how the experiments, environments and bounds of two runs differ.

    The bounds are those that both runs recorded on the same text with the same masks. `atat compare` evaluates the
    final models and gives a confidence interval for the difference.
    """
    folders = [RunFolder(path) for path in runs]
    environments = [environment(folder) for folder in folders]
    tables = {
        what: {key: [here, there] for key, here, there, _ in changes(one, other)}
        for what, (one, other) in {"experiment": [run.table() for run in folders], "environment": environments}.items()
    }
    same = side_by_side(folders)
    if as_json:
        rows = [{**on, "bounds": list(map(attrs.asdict, bounds))} for on, bounds in same]
        print_json({"runs": [str(path) for path in runs], **tables, "bounds": rows})
        return
    names = [path.resolve().name for path in runs]
    names = names if names[0] != names[1] else [str(path) for path in runs]
    for what, differing in tables.items():
        if differing:
            table([what, *names], [[key, *map(_cell, values)] for key, values in differing.items()])
        elif what == "environment" and not any(environments):
            click.echo("no environment was recorded")
        else:
            click.echo(f"same {what}")
        click.echo("")
    if same:
        table(["held-out", *names], [[_text(*each), *map(_bound_text, each[1])] for each in same])
    command = printable(shlex.join(["atat", "compare", *map(str, runs)]))
    click.echo(
        f"`{command}` measures the difference and gives its confidence interval."
        if same
        else f"the runs have no evaluation on the same text and masks; run `{command}`"
    )


def _cell(value: Any) -> str:
    if value is None:
        return NONE
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _text(on: dict[str, Any], bounds: list[RecordedBound]) -> str:
    masks = f", seed {on['seed']}" if on["draws"] else ""
    steps = " and ".join(dict.fromkeys(str(bound.step) for bound in bounds))
    return f"{on['split']}, {size(on['sequences'], on['draws'])}{masks}, step {steps}"
