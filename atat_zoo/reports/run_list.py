"""Listing of runs from their folders: progress, bounds, and differences between two runs.

It imports no torch and builds no components, so runs from other versions or with missing plugins are also listed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.quantity_names import title
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.model_files import DESCRIPTION
from atat_zoo.reports import run_records
from atat_zoo.reports.run_records import conditions, evaluated, of_training
from atat_zoo.system.errors import UserError

TRAINING, STOPPED, FINISHED, IMPORTED, DAMAGED = STATES = ("training", "stopped", "finished", "imported", "damaged")
_DEEPEST = 4  # maximum number of folders between the searched folder and a run


@attrs.frozen(kw_only=True)
class RecordedBound:
    """The exponential of a bound from a recorded evaluation, with its standard error."""

    quantity: str  # name of the bound's exponential
    value: float
    stderr: float | None  # one standard error over sequences
    step: int  # optimizer steps after which the weights were evaluated


@attrs.frozen(kw_only=True)
class ListedRun:
    """The summary of a run folder."""

    path: Path
    name: str  # path relative to the searched folder
    state: str  # one of STATES
    objective: str | None = None
    step: int | None = None  # last recorded step
    steps: int | None = None  # steps of the complete training run; None for an imported model
    bound: RecordedBound | None = None  # last bound that training itself recorded
    age: float  # seconds since training last recorded something
    problem: str = ""  # a sentence about damaged files

    def to_table(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return attrs.asdict(self) | {"path": str(self.path)}


def find(folder: Path, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Yield `folder` if it is a run; otherwise the runs at most `deepest` levels below, by name, except hidden ones."""
    if RunFolder(folder).exists:
        yield folder
    elif deepest:
        with suppress(OSError):  # no permission, or already deleted
            for inner in sorted(folder.iterdir()):
                # Links may be circular, so a link is followed only if it leads to a run.
                if not inner.name.startswith(".") and inner.is_dir():
                    with suppress(UserError):
                        yield from find(inner, 0 if inner.is_symlink() else deepest - 1)


def glance(path: Path, name: str) -> ListedRun:
    """Return the summary of a run folder; damaged files are ignored and reported in `problem`."""
    run = RunFolder(path)
    last = run.last_metrics()
    began = max(_changed(path) for path in (run.resolved, run.metrics))
    # A run whose lock is held is being trained, and a run with a final model is finished.
    whole_state = IMPORTED if run.imported() else FINISHED
    state = TRAINING if run.in_use else whole_state if (run.model / DESCRIPTION).is_file() else STOPPED
    seen = ListedRun(path=path, name=name, state=state, step=last.get("step", 0), age=max(0, time.time() - began))
    try:
        table = run.table()
        with whole(run):
            own = of_training(evaluated(store.tables(run)), table)
            objective, steps = str(table["objective"]["use"]), int(table["train"]["steps"])
            seen = attrs.evolve(seen, objective=objective, steps=None if state == IMPORTED else steps)
            return attrs.evolve(seen, bound=own_bound(own[-1]) if own else None)
    except UserError as error:
        return attrs.evolve(seen, state=DAMAGED, problem=str(error))


@contextmanager
def whole(run: RunFolder) -> Iterator[None]:
    """Raise `UserError` if a `with` block reads a missing or invalid key of a run's experiment."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError):  # OverflowError: infinitely many steps
        problem = f"{run.resolved} is an incomplete experiment"
        raise UserError(f"{problem}; copy the run again, or train it again") from None


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def bounds(evaluation: Mapping[str, Any]) -> dict[str, RecordedBound]:
    """Return the bounds, by name, of an evaluation record as returned by `run_records.evaluated`."""
    step, recorded_bounds = evaluation["step"], evaluation["bounds"].items()
    return {
        name: RecordedBound(
            quantity=title(name, bound["factorisation"]), value=bound["value"], stderr=bound["stderr"], step=step
        )
        for name, bound in recorded_bounds
    }


def own_bound(evaluation: Mapping[str, Any]) -> RecordedBound:
    """Return the main bound of an evaluation record, which is its first; see `bounds`."""
    return next(iter(bounds(evaluation).values()))


# Two runs


def environment(run: RunFolder) -> dict[str, Any]:
    """Return the recorded environment without command and seed, or an empty table if it cannot be read."""
    return {key: value for key, value in run_records.environment(run).items() if key not in ("command", "seed")}


def side_by_side(runs: Sequence[RunFolder]) -> list[tuple[dict[str, Any], list[RecordedBound]]]:
    """Return, for each bound that all runs have under equal conditions, these conditions and each run's last bound."""
    last: list[dict[Any, tuple[dict[str, Any], RecordedBound]]] = []
    for run in runs:
        tables = evaluated(store.tables(run))  # a later step replaces an earlier one
        last.append({(name, *conditions(table)): (table, b) for table in tables for name, b in bounds(table).items()})
    shown = ("split", "sequences", "draws", "seed", "method")
    return [
        ({field: table[field] for field in shown}, [of_run[key][1] for of_run in last])
        for key, (table, _) in last[0].items()
        if all(key in of_run for of_run in last)
    ]
