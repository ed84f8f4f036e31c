"""Table cells: printed numbers with their unrounded values, and commands that compute missing values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from atat_zoo.evaluation.results.format import NONE, cell, interval, number
from atat_zoo.evaluation.results.intervals import Interval, percent
from atat_zoo.evaluation.results.table import HIGHER, LOWER, Cell, Column, Table
from atat_zoo.studies.differences import over_sequences
from atat_zoo.system.errors import nearest
from atat_zoo_paper.paper_file import Directed, TableSpec
from atat_zoo_paper.paper_studies import CannotShow

MISSING = "--"


def filled(
    spec: TableSpec,
    corner: str,
    columns: Iterable[Column],
    rows: Iterable[tuple[str, Sequence[Cell]]],
    notes: Sequence[str] = (),
    cited: Iterable[tuple[str, str, Sequence[Cell]]] = (),
) -> Table:
    """Return a table of rows (name, cells) with the heading `corner` above the names; `cited` rows come last."""
    return Table(
        label=spec.label,
        title=spec.caption,
        columns=[Column(heading=corner, key="name"), *columns],
        rows=[[name, *row] for name, row in rows],
        notes=notes,
        cited=[(source, [words(name), *row]) for name, source, row in cited],
    )


def missing_in(table: Table) -> Iterator[tuple[str, str]]:
    """Yield a description of each missing or incomplete cell of a table, and the command that computes it."""
    for name, *row in table.rows:
        for column, each in zip(table.columns[1:], row, strict=True):
            if each.command:
                yield f"{table.label}: {name.text}, {column.key}", each.command


def words(text: str) -> Cell:
    """Return a cell that contains text."""
    return Cell(text=text, value=text)


def nothing(why: str = NONE) -> Cell:
    """Return a cell for a value that does not exist, which shows the reason."""
    return Cell(text=why)


def missing(command: str) -> Cell:
    """Return a cell for a missing value, with the command that computes it."""
    return Cell(text=MISSING, command=command)


def of_seeds(cell: Cell, found: int, wanted: int, command: str) -> Cell:
    """Return the cell; if only `found` of `wanted` seeds are finished, it says so and has the command for the rest."""
    if found >= wanted:
        return cell
    said = f"{found} of {number(wanted, 'seed')}"
    return attrs.evolve(cell, text=said if cell.value is None else f"{cell.text} ({said})", command=command)


def count(value: float | None, digits: str) -> Cell:
    """Return a cell with a formatted number, without an interval."""
    return Cell(text=cell(value, digits), value=value)


def within(found: Interval | None, unit: str = "", sign: str = "") -> Cell:
    """Return a cell with a number and its interval, or with `not finite`."""
    if found is None or not all(map(math.isfinite, (found.value, found.low, found.high))):
        return nothing("not finite")
    ends = found.value, found.low, found.high
    return Cell(text=interval(*ends, unit=unit, sign=sign), value=ends[0], low=ends[1], high=ends[2])


def exponential(found: Interval | None) -> Cell:
    """Return a cell with the exponential of a value in nats per token and of its interval."""
    ends = found and [1 + percent(end) / 100 for end in (found.value, found.low, found.high)]
    return within(Interval(value=ends[0], low=ends[1], high=ends[2]) if ends else None)


def change(table: Mapping[str, float | None]) -> Cell:
    """Return a cell with a difference in percent and its interval, from a table made by `Interval.to_table`."""
    ends = [table[key] for key in ("percent", "percent_low", "percent_high")]
    if None in ends:
        return nothing("not finite")
    value, low, high = (float(end or 0) for end in ends)
    return within(Interval(value=value, low=low, high=high), " %", "+")


def trained_alike(columns: Sequence[str], how: Sequence[Any]) -> Iterator[str]:
    """Yield a note if the times and memory shown were measured on different machines or under different loads."""
    costs = {"seconds", "seconds_per_step", "tokens_per_second", "peak_memory"}
    if costs & {*columns} and any(each != how[0] for each in how):
        yield "Not all runs were trained under the same conditions, so their times and memory are not comparable."


def directed(spec: Directed) -> Iterator[Column]:
    """Yield a table's columns, marked if lower or higher is better; raise `CannotShow` if an unknown one is marked."""
    for key in (*spec.lower, *spec.higher):
        if key not in spec.columns:
            raise CannotShow("columns", f"{key!r} in lower or higher is not a column{nearest(key, list(spec.columns))}")
    for key in spec.columns:
        yield Column(key=key, heading=key, better=LOWER if key in spec.lower else HIGHER if key in spec.higher else 0)


def require(columns: Sequence[str], task: str, scores: list[str] | None) -> None:
    """Raise `CannotShow` for a column that is not a score of the task, if the scores are known."""
    for column in columns:
        if scores is not None and column not in scores:
            there = f"{nearest(column, scores)} (scores: {', '.join(scores)})"
            raise CannotShow("columns", f"the task {task!r} has no score {column!r}{there}")


def normal(value: float | None, error: float | None) -> Cell:
    """Return a cell with a value and, if it has a standard error over items, its confidence interval."""
    if value is None:
        return nothing("not finite")
    if error is None:
        return count(value, ".4g")
    return within(over_sequences([value], [error]))
