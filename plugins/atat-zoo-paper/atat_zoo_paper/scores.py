"""Tables of scores: of the arms of a study by one of its tasks, and what they share with those of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from atat_zoo.errors import nearest
from atat_zoo.studies.differences import over_both, over_sequences
from atat_zoo_paper.cells import (
    HIGHER,
    LOWER,
    Cell,
    Column,
    FilledTable,
    count,
    exponential,
    missing,
    nothing,
    of_seeds,
    within,
)
from atat_zoo_paper.manifest import Directed, ScoresTable, WantedTable
from atat_zoo_paper.studies import CannotShow, Studies, Table, legend, seeds_enough


def directed(spec: Directed) -> Iterator[Column]:
    """Yield the columns of a table that says itself in which of them less or more is better."""
    for key in (*spec.lower, *spec.higher):
        if key not in spec.columns:
            raise CannotShow("columns", f"{key!r} is no column{nearest(key, list(spec.columns))}")
    for key in spec.columns:
        yield Column(key=key, heading=key, better=LOWER if key in spec.lower else HIGHER if key in spec.higher else 0)


def require(columns: Sequence[str], task: str, scores: list[str] | None) -> None:
    """Raise `CannotShow` for a column that is none of a task's scores, if these are known."""
    for column in columns:
        if scores is not None and column not in scores:
            there = f"{nearest(column, scores)} (there are: {', '.join(scores)})"
            raise CannotShow("columns", f"the task {task!r} has no score {column!r}{there}")


def normal(value: float | None, error: float | None) -> Cell:
    """Return a value with the interval of its standard error over items."""
    if value is None:
        return nothing("not finite")
    if error is None:
        return count(value, ".4g")
    return within(over_sequences([value], [error]))


def scores_table(wanted: WantedTable, studies: Studies) -> FilledTable:
    """Return what the arms of a study score; what it names and is not there raises `CannotShow`."""
    spec: ScoresTable = wanted.spec
    known = studies.named(spec.study)
    tasks = [task.name for task in known.study.held_out.tasks]
    if spec.task not in tasks:
        there = f"{nearest(spec.task, tasks)} (there are: {', '.join(tasks) or 'none'})"
        raise CannotShow("task", f"the study {known.study.name!r} has no task {spec.task!r}{there}")
    columns = list(directed(spec))
    measured = (known.report or {}).get("tasks") or ()
    of_task = next((each for each in measured if each["settings"]["use"] == spec.task), None)
    by_name = {score["score"]: score for score in of_task["scores"]} if of_task else {}
    require(spec.columns, spec.task, list(by_name) if of_task else None)
    rows = []
    for row in wanted.rows:
        seeds_enough(spec, row.arm, known, spec.columns)
        seeds, cells = len(known.study.seeds[row.arm]), []
        for key in spec.columns:
            score = by_name.get(key)
            found = next((each for each in score["rows"] if each["arm"] == row.arm), None) if score else None
            if score is None or found is None:
                cells.append(missing(known.command))
            else:
                cells.append(of_seeds(_cell(spec, score, found), len(found["seeds"]), seeds, known.command))
        rows.append((row.name or row.arm, cells))
    notes = [legend(spec.intervals, "items"), *(of_task["notes"] if of_task else ())]
    return FilledTable(label=spec.label, caption=spec.caption, columns=columns, rows=rows, notes=notes, corner="arm")


def _cell(spec: ScoresTable, score: Table, row: Table) -> Cell:
    """Return the mean over seeds, with its interval where there are errors over items."""
    values = row["values"]
    if None in values:
        return nothing("not finite")
    errors = row["stderrs"]
    if spec.intervals == "both" and None not in errors:
        if score["exponential"]:
            shares = [error / value for error, value in zip(errors, values, strict=True)]
            return exponential(over_both([math.log(value) for value in values], shares))
        return within(over_both(values, errors))
    return normal(statistics.fmean(values), None if None in errors else statistics.fmean(errors))
