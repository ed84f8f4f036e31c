"""`atat ls`: the runs in a folder, at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import print_json, printable, table
from atat_zoo.errors import UserError, clip
from atat_zoo.report.runs import STATES, find, glance
from atat_zoo.results.format import NONE, lasting, uncertain

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from atat_zoo.report.runs import ListedRun, RecordedBound

# What has no bound comes last.
_ORDERS: dict[str, Callable[[ListedRun], Any]] = {
    "name": lambda run: run.name,
    "age": lambda run: run.age,
    "bound": lambda run: run.bound.value if run.bound else float("inf"),
    "step": lambda run: -(run.step or 0),
}


@click.command()
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@click.option("--sort", type=click.Choice(list(_ORDERS)), default="name", show_default=True, help="Order of the runs.")
@click.option("--objective", help="Only runs with this objective.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@options("json")
def ls(folder: Path, sort: str, objective: str | None, state: str | None, as_json: bool) -> None:
    """List the runs in FOLDER, those of studies included; `runs` when absent.

    A run is training while a process holds its lock, finished when it has its final model, and else stopped. Its bound
    is the last that the training recorded, with one standard error over sequences; its age, the time since it recorded
    anything.
    """
    if not folder.is_dir():
        raise UserError(f"{clip(folder)} is no folder; name one that runs are in")
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
        click.echo(f"none of the {len(runs)} runs in {folder} is like that" if runs else f"there is no run in {folder}")
        return
    rows = [
        [run.name, run.objective or NONE, _steps(run), bound_text(run.bound), lasting(run.age), run.state]
        for run in chosen
    ]
    table(["run", "objective", "step", "bound", "age", "state"], rows)
    for run in chosen:
        if run.problem:
            click.echo(f"{printable(run.name)}: {printable(run.problem)}")


def _steps(run: ListedRun) -> str:
    return f"{run.step}/{NONE if run.steps is None else run.steps}"


def bound_text(bound: RecordedBound | None) -> str:
    """Return a bound with its name, and no more digits than its error allows."""
    return NONE if bound is None else f"{bound.quantity} {uncertain(bound.value, bound.stderr)}"
