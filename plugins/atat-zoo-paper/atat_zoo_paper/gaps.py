"""Tables of what the arms of a study pay for gaps, given the rest."""

from __future__ import annotations

import math
import statistics

from atat_zoo.errors import nearest
from atat_zoo_paper.cells import Cell, Column, FilledTable, change, count, missing, nothing, of_seeds
from atat_zoo_paper.manifest import GapRow, GapsTable, WantedTable
from atat_zoo_paper.studies import CannotShow, KnownStudy, Studies, Table, legend, seeds_enough

BOUND = "bound"


def gaps_table(wanted: WantedTable, studies: Studies) -> FilledTable:
    """Return what arms pay for gaps; what it names and is not there raises `CannotShow`."""
    spec: GapsTable = wanted.spec
    known = studies.named(spec.study)
    if known.study.gaps is None:
        raise CannotShow("study", f"{known.study.name!r} has no [gaps]; name a study that prices gaps")
    parts = {part["what"]: part["rows"] for part in (known.report or {}).get("gaps") or ()}
    for what in spec.columns if parts else ():
        if what not in parts:
            there = f"(there are: {', '.join(parts)})"
            raise CannotShow(
                "columns", f"the study {known.study.name!r} has no {what!r}{nearest(what, list(parts))} {there}"
            )
    rows = []
    for row in wanted.rows:
        arm = known.arm(row.arm)
        seeds_enough(spec, row.arm, known, spec.columns)
        priced = [parts[what] if parts and arm else None for what in spec.columns]
        cells = [missing(known.command) if part is None else _gap(row, spec, known, part) for part in priced]
        if arm:
            cells = [of_seeds(cell, len(arm["runs"]), len(known.study.seeds[row.arm]), known.command) for cell in cells]
        rows.append((row.name or row.arm, cells))
    columns = [Column(key=what, heading=what) for what in spec.columns]
    notes = [f"e to the nats per token of what is to be written, given the rest. {legend(spec.intervals)}"]
    return FilledTable(label=spec.label, caption=spec.caption, columns=columns, rows=rows, notes=notes, corner="arm")


def _gap(row: GapRow, spec: GapsTable, known: KnownStudy, part: list[Table]) -> Cell:
    """Return what an arm pays, or how far that is from what the baseline pays."""
    found = next((each for each in part if each["arm"] == row.arm and by(each) == row.by), None)
    if found is None:
        known_by = [by(each) for each in part if each["arm"] == row.arm]
        hint = nearest(row.by, known_by)
        raise CannotShow(
            "rows", f"{row.arm!r} has no price by {row.by!r}{hint} (there are: {', '.join(known_by) or 'none'})"
        )
    if row.against is None:
        if None in found["values"]:
            return nothing("not finite")
        logs = [math.log(value) for value in found["values"]]
        one = math.exp(statistics.fmean(logs))
        return count(one, ".1f")
    against = gap_difference(found, row.against)
    if against is None:
        known_by = [by(each) for each in found["against"]]
        hint, there = nearest(row.against, known_by), ", ".join(known_by) or "none"
        raise CannotShow(
            "rows", f"{row.arm!r} is not compared with {row.against!r} of the baseline{hint} (there are: {there})"
        )
    table = against[spec.intervals]
    return change(table) if table else missing(known.command)


def gap_difference(row: Table, against: str) -> Table | None:
    """Return the difference of a price from the baseline's by a sampler or the bound."""
    return next((each for each in row["against"] if by(each) == against), None)


def by(row: Table) -> str:
    """Return what a price is of: the name of a sampler, or the bound."""
    return row["by"]["use"] if row["by"] else BOUND
