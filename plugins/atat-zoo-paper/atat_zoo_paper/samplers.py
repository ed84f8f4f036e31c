"""Tables of what texts cost along the samplers of a study, and in how many evaluations they write them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import nearest
from atat_zoo.registry.spec import unstructure
from atat_zoo_paper.cells import LOWER, Cell, Column, FilledTable, change, count, missing, nothing, of_seeds, words
from atat_zoo_paper.manifest import FigureSpec, SamplersTable, WantedTable
from atat_zoo_paper.studies import CannotShow, KnownStudy, Studies, Table, legend, seeds_enough

if TYPE_CHECKING:
    from atat_zoo.studies.schema import Study

COLUMNS = {
    "value": Column(key="value", heading="e^(nats/token)", better=LOWER),
    "difference": Column(key="difference", heading="against the first", better=LOWER, than=0.0),
    "quantity": Column(key="quantity", heading="quantity"),
    "evaluations": Column(key="evaluations", heading="evaluations"),
    "seconds": Column(key="seconds", heading="seconds"),
    "times_as_long": Column(key="times_as_long", heading="times as long"),
}


def samplers_table(wanted: WantedTable, studies: Studies) -> FilledTable:
    """Return what the samplers of a study do; what it names and is not there raises `CannotShow`."""
    spec: SamplersTable = wanted.spec
    if unknown := next((key for key in spec.columns if key not in COLUMNS), None):
        hint = nearest(unknown, list(COLUMNS))
        raise CannotShow("columns", f"{unknown!r} is no column of samplers{hint} (there are: {', '.join(COLUMNS)})")
    known = studies.named(spec.study)
    wants = known.study.samplers
    if wants is None:
        raise CannotShow("study", f"{known.study.name!r} has no [samplers]; name a study that compares samplers")
    of_arms = {each["arm"]: each for each in (known.report or {}).get("samplers") or ()}
    rows = []
    for row in wanted.rows:
        if row.arm not in wants.arms:
            there = f"{nearest(row.arm, wants.arms)} (there are: {', '.join(wants.arms)})"
            raise CannotShow("rows", f"the study {known.study.name!r} has no samplers of the arm {row.arm!r}{there}")
        if row.sampler > len(wants.each):
            raise CannotShow(
                "rows", f"the study {known.study.name!r} has {len(wants.each)} samplers, and no {row.sampler}"
            )
        seeds_enough(spec, row.arm, known, spec.columns)
        cells = [_cell(key, spec, known, of_arms.get(row.arm), row.sampler - 1) for key in spec.columns]
        if found := of_arms.get(row.arm):
            seeds = len(found["seeds"]), len(known.study.seeds[row.arm])
            cells = [of_seeds(cell, *seeds, known.command) for cell in cells]
        rows.append((row.name or f"{row.arm}, {wants.each[row.sampler - 1].name}", cells))
    notes = [f"e to the nats per token of held-out text along the sampler's own order. {legend(spec.intervals)}"]
    columns = [COLUMNS[key] for key in spec.columns]
    return FilledTable(
        label=spec.label, caption=spec.caption, columns=columns, rows=rows, notes=notes, corner="sampler"
    )


def axis_of(study: Study) -> tuple[str, list[float]] | None:
    """Return the one number in which a study's samplers differ, by name, and its value in each; None if it is no one.

    What stands in several places, as the threshold of a pace and that of a stop, is one if it is everywhere the same.
    """
    tables = [dict(_leaves(unstructure(each))) for each in (study.samplers.each if study.samplers else ())]
    keys = [key for key in tables[0] if len({repr(table.get(key)) for table in tables}) > 1] if tables else []
    values = [{repr(table.get(key)): table.get(key) for key in keys} for table in tables]
    numbers: list[Any] = [next(iter(each.values())) for each in values if len(each) == 1]
    names = {key.rpartition(".")[2] for key in keys}
    alike = all(table.keys() == tables[0].keys() for table in tables)
    if (
        not alike
        or len(names) != 1
        or len(numbers) < len(tables)
        or not all(isinstance(n, int | float) for n in numbers)
    ):
        return None
    return f"samplers.{names.pop()}", numbers


def _leaves(table: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        yield from _leaves(value, f"{at}{key}.") if isinstance(value, dict) else [(f"{at}{key}", value)]


def along(spec: FigureSpec, known: KnownStudy, arm: str) -> list[tuple[str, Cell, bool]] | None:
    """Return what texts cost an arm for each value in which its samplers differ: label, cell, whether it is the first.

    None for an arm without results. Only differences have intervals.
    """
    axis = axis_of(known.study)
    found = next((each for each in (known.report or {}).get("samplers") or () if each["arm"] == arm), None)
    if axis is None or found is None:
        return None
    cells = [_cell("value", spec, known, found, number) for number in range(len(axis[1]))]
    points = [
        (f"{value:g}", cell, number == 0) for number, (value, cell) in enumerate(zip(axis[1], cells, strict=True))
    ]
    return [point for _, point in sorted(zip(axis[1], points, strict=True)) if point[1].value is not None]


def _cell(key: str, spec: SamplersTable | FigureSpec, known: KnownStudy, arm: Table | None, number: int) -> Cell:
    if arm is None:
        return missing(known.command)
    row: Table = arm["samplers"][number]
    match key:
        case "difference":
            # The first has none: the others are compared with it.
            table = row.get(spec.intervals)
            return change(table) if table else nothing() if number == 0 else missing(known.command)
        case "quantity":
            return words(row["quantity"])
        case "evaluations":
            return count(row["nfe"], ".1f")
        case "seconds":
            return count(row["seconds"], ".2f")
        case "times_as_long":
            return count(row.get("seconds_ratio"), ".2f")
    if None in row["values"]:
        return nothing("not finite")
    logs = [math.log(value) for value in row["values"]]
    return count(math.exp(sum(logs) / len(logs)), ".1f")
