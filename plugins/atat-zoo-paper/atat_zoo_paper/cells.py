"""Cells and tables: what is shown of a number, what of it is kept unrounded, and which is the best of its column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from atat_zoo.evaluation.results.format import NONE, as_text, cell, interval, markdown, number
from atat_zoo.evaluation.results.intervals import Interval, percent

MISSING = "--"
LOWER, HIGHER = -1, 1  # in which direction a column is better; 0 for neither


@attrs.frozen(kw_only=True)
class Cell:
    """A cell; one with a command is missing, or a part of it, and the command fills it."""

    text: str
    value: float | str | None = None  # unrounded
    low: float | None = None  # ends of the interval
    high: float | None = None
    command: str = ""

    @property
    def sure(self) -> Interval | None:
        """The interval, None where there is none."""
        if self.low is None or self.high is None or not isinstance(self.value, int | float):
            return None
        return Interval(value=self.value, low=self.low, high=self.high)


def words(text: str) -> Cell:
    """Return a cell of text."""
    return Cell(text=text, value=text)


def nothing(why: str = NONE) -> Cell:
    """Return a cell of which there is nothing to be had."""
    return Cell(text=why)


def missing(command: str) -> Cell:
    """Return a missing cell."""
    return Cell(text=MISSING, command=command)


def of_seeds(cell: Cell, found: int, wanted: int, command: str) -> Cell:
    """Return a cell that says so where fewer seeds are finished than wanted; the command trains the others."""
    if found >= wanted:
        return cell
    said = f"{found} of {number(wanted, 'seed')}"
    return attrs.evolve(cell, text=said if cell.value is None else f"{cell.text} ({said})", command=command)


def count(value: float | None, digits: str) -> Cell:
    """Return a number without an interval, with so many digits."""
    return Cell(text=cell(value, digits), value=value)


def within(found: Interval | None, unit: str = "", sign: str = "") -> Cell:
    """Return a number with its interval; None where the numbers are not finite."""
    if found is None or not all(map(math.isfinite, (found.value, found.low, found.high))):
        return nothing("not finite")
    ends = found.value, found.low, found.high
    return Cell(text=interval(*ends, unit=unit, sign=sign), value=ends[0], low=ends[1], high=ends[2])


def exponential(found: Interval | None) -> Cell:
    """Return e to an interval of nats per token."""
    ends = found and [1 + percent(end) / 100 for end in (found.value, found.low, found.high)]
    return within(Interval(value=ends[0], low=ends[1], high=ends[2]) if ends else None)


def change(table: Mapping[str, float | None]) -> Cell:
    """Return the percent of a difference, as `Interval.to_table` has it."""
    ends = [table[key] for key in ("percent", "percent_low", "percent_high")]
    if None in ends:
        return nothing("not finite")
    value, low, high = (float(end or 0) for end in ends)
    return within(Interval(value=value, low=low, high=high), " %", "+")


def trained_alike(columns: Sequence[str], how: Sequence[Any]) -> Iterator[str]:
    """Say that times and memory are of different machines or of different loads on one, if such are shown."""
    costs = {"seconds", "seconds_per_step", "tokens_per_second", "peak_memory"}
    if costs & {*columns} and any(each != how[0] for each in how):
        yield "Not all runs were trained alike: their seconds and memory are not comparable."


@attrs.frozen(kw_only=True)
class Column:
    """A column: its key in the manifest, its heading, in which direction it is better, and from where on."""

    key: str
    heading: str
    better: int = 0
    than: float | None = None  # the baseline's, which has no cell of its own


@attrs.frozen(kw_only=True)
class FilledTable:
    """A table with its numbers."""

    label: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    cited: Sequence[tuple[str, str, Sequence[Cell]]] = ()  # name, source, cells
    notes: Sequence[str] = ()  # sentences below it
    corner: str = ""  # the heading of the names

    def best(self) -> set[tuple[int, int]]:
        """Return row and column of the cells whose interval lies apart from all others of their column.

        None of a column in which one is missing, or without an interval: it might be the best. What is cited is a
        point, of a bound too: the true value may be lower still.
        """
        found = set()
        for at, column in enumerate(self.columns):
            cells = [cells[at] for _, cells in self.rows if cells[at].value is not None or cells[at].command]
            finished = ((row, cells[at].sure) for row, (_, cells) in enumerate(self.rows) if not cells[at].command)
            sure = {row: interval for row, interval in finished if interval}
            points = [cells[at].value for *_, cells in self.cited] + [column.than]
            fixed = [Interval(value=point, low=point, high=point) for point in points if isinstance(point, int | float)]
            if not column.better or len(sure) < len(cells) or not sure or len(sure) + len(fixed) < 2:
                continue
            row, first = max(sure.items(), key=lambda each: column.better * each[1].value)
            others = [*fixed, *(other for each, other in sure.items() if each != row)]
            if all(_apart(first, other, column.better) for other in others):
                found.add((row, at))
        return found

    def missing(self) -> Iterator[tuple[str, str]]:
        """Yield what is missing and the command that fills it."""
        for name, cells in self.rows:
            for column, each in zip(self.columns, cells, strict=True):
                if each.command:
                    yield f"{self.label}: {name}, {column.key}", each.command

    def lines(self) -> list[list[str]]:
        """Return every row as text, its name first, the best in Markdown's bold."""
        best, rows = self.best(), []
        for row, (name, cells) in enumerate(self.rows):
            shown = [f"**{each.text}**" if (row, at) in best else each.text for at, each in enumerate(cells)]
            rows.append([name, *shown])
        for name, source, cells in self.cited:
            rows.append([f"{name} [{source}]" if source else name, *(each.text for each in cells)])
        return rows

    def to_markdown(self) -> str:
        """Return it as Markdown."""
        columns = [self.corner, *(column.heading for column in self.columns)]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([self.caption, "", *markdown(columns, self.lines()), *notes]) + "\n"

    def to_csv(self) -> str:
        """Return it as CSV: numbers as they were measured, the ends of an interval in columns of their own."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        every = [*((name, "", cells) for name, cells in self.rows), *self.cited]
        ends = [any(cells[at].sure for *_, cells in every) for at in range(len(self.columns))]
        heads = [
            [c.key, *([f"{c.key} low", f"{c.key} high"] if e else [])] for c, e in zip(self.columns, ends, strict=True)
        ]
        writer.writerow(["name", "source", *(as_text(head) for each in heads for head in each)])
        for name, source, cells in every:
            row: list[object] = [as_text(name), as_text(source)]
            for each, has in zip(cells, ends, strict=True):
                row += [each.value, *((each.low, each.high) if has else ())]
            writer.writerow(row)
        return file.getvalue()


def _apart(best: Interval, other: Interval, better: int) -> bool:
    return best.high < other.low if better == LOWER else best.low > other.high
