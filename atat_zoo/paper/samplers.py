"""Tables of what texts cost along the samplers of a study, and in how many evaluations they write them."""

from __future__ import annotations

import math

from atat_zoo.errors import nearest
from atat_zoo.paper.cells import (
    LOWER,
    Cell,
    Column,
    FilledTable,
    change,
    count,
    exponential,
    missing,
    nothing,
    of_seeds,
    words,
)
from atat_zoo.paper.manifest import SamplersTable, WantedTable
from atat_zoo.paper.studies import CannotShow, KnownStudy, Studies, Table, legend, seeds_enough
from atat_zoo.results.intervals import of_mean

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


def _cell(key: str, spec: SamplersTable, known: KnownStudy, arm: Table | None, number: int) -> Cell:
    if arm is None:
        return missing(known.command)
    row: Table = arm["samplers"][number]
    match key:
        case "difference":
            # The first has none: the others are compared with it.
            table = row.get("over_seeds" if spec.intervals == "seeds" else "sequences")
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
    if spec.intervals == "seeds":
        return exponential(of_mean(logs))
    return count(math.exp(sum(logs) / len(logs)), ".1f")
