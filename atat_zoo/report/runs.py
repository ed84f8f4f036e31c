"""Runs as their folders tell of them: which there are, how far, how good, and what differs between two.

Imports no torch and loads no part, so that runs of another version, or of a plugin that is not here, are listed too.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo import parsing
from atat_zoo.errors import UserError
from atat_zoo.evaluation.naming import title
from atat_zoo.report.recorded import conditions, evaluated, of_training, tables
from atat_zoo.run import RunFolder
from atat_zoo.run.model_files import DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TRAINING, STOPPED, FINISHED, DAMAGED = STATES = ("training", "stopped", "finished", "damaged")
_DEEPEST = 4  # folders between the one that is searched and a run


@attrs.frozen(kw_only=True)
class RecordedBound:
    """A bound that an evaluation has recorded."""

    quantity: str  # what its exponential is called
    value: float
    stderr: float | None  # one standard error over sequences
    step: int  # optimizer steps of the weights


@attrs.frozen(kw_only=True)
class ListedRun:
    """A run folder at a glance."""

    path: Path
    name: str  # its path from the folder that was searched
    state: str  # one of STATES
    objective: str | None = None
    step: int | None = None  # the last that is recorded
    steps: int | None = None  # of the whole training
    bound: RecordedBound | None = None  # the last that the training itself recorded
    age: float  # seconds since the training recorded something
    problem: str = ""  # a sentence about what is damaged

    def to_table(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return attrs.asdict(self) | {"path": str(self.path)}


def find(folder: Path, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Yield the run folders in a folder, itself included, by name; hidden folders are not searched, nor are runs.

    Raises:
        UserError: when the folder itself cannot be read; one in it is left out.
    """
    if RunFolder(folder).exists:
        yield folder
    elif deepest:
        with suppress(OSError):  # no permission, or gone by now
            for inner in sorted(folder.iterdir()):
                # A link may lead round in a circle: it is followed to a run only.
                if not inner.name.startswith(".") and inner.is_dir():
                    with suppress(UserError):
                        yield from find(inner, 0 if inner.is_symlink() else deepest - 1)


def glance(path: Path, name: str) -> ListedRun:
    """Return what a run folder says of itself; what is damaged is said, and left out."""
    run = RunFolder(path)
    last = run.last_metrics()
    began = max((_changed(each) for each in (run.resolved, run.metrics)), default=0.0)
    seen = ListedRun(path=path, name=name, state=_state(run), step=last.get("step", 0), age=max(0, time.time() - began))
    try:
        table = run.table()
        own = bounds(run, table)
        return attrs.evolve(
            seen,
            objective=str(table["objective"]["use"]),
            steps=int(table["train"]["steps"]),
            bound=own[-1] if own else None,
        )
    except UserError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, OverflowError):  # OverflowError: infinitely many steps
        problem = f"{run.resolved} is not the whole of an experiment; copy the run again, or train again"
    return attrs.evolve(seen, state=DAMAGED, problem=problem)


def _state(run: RunFolder) -> str:
    """Return a run's state: one whose lock is held is being trained, and one with a final model is finished."""
    if run.in_use:
        return TRAINING
    return FINISHED if (run.model / DESCRIPTION).is_file() else STOPPED


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def bounds(run: RunFolder, table: Mapping[str, Any] | None = None) -> list[RecordedBound]:
    """Return the bounds that the training itself recorded; the last is the one that the run is judged by.

    `table` is the run's, where it is read already.

    Raises:
        UserError, KeyError, TypeError: when the experiment cannot be read, or is not whole.
    """
    table = run.table() if table is None else table
    return [next(iter(recorded(each).values())) for each in of_training(evaluated(tables(run)), table)]


def recorded(evaluation: Mapping[str, Any]) -> dict[str, RecordedBound]:
    """Return the bounds of one of `evaluated` by name."""
    step = evaluation["step"]
    return {
        name: RecordedBound(quantity=title(name), value=each["value"], stderr=each["stderr"], step=step)
        for name, each in evaluation["bounds"].items()
    }


# Two runs


def environment(run: RunFolder) -> dict[str, Any]:
    """Return the recorded environment without the command, which names each run; empty when it cannot be read."""
    with suppress(OSError, ValueError):
        table = parsing.from_json(parsing.read(run.environment))
        if isinstance(table, dict):
            return {key: value for key, value in table.items() if key not in ("command", "seed")}
    return {}


@attrs.frozen(kw_only=True)
class SameText:
    """The same bound of several runs, last recorded on the same text under the same masks."""

    split: str
    sequences: int
    draws: int  # 0 for a likelihood, under which nothing is masked
    seed: int
    method: str
    bounds: tuple[RecordedBound, ...]  # one of each run


def side_by_side(runs: Sequence[RunFolder]) -> list[SameText]:
    """Return the bounds that all runs have recorded on the same text under the same masks."""
    last: list[dict[Any, tuple[dict[str, Any], RecordedBound]]] = [{} for _ in runs]
    for run, found in zip(runs, last, strict=True):
        for table in evaluated(tables(run)):  # a later step takes the place of an earlier one
            for name, bound in recorded(table).items():
                found[(name, *conditions(table))] = table, bound
    same, shown = [], ("split", "sequences", "draws", "seed", "method")
    for key, (table, _) in last[0].items():
        if all(key in found for found in last):
            values: dict[str, Any] = {field: table[field] for field in shown}
            same.append(SameText(**values, bounds=tuple(found[key][1] for found in last)))
    return same
