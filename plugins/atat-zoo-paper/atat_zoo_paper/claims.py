"""Claims that the numbers support: one sentence per difference, which says whether it is significant."""

from __future__ import annotations

from collections.abc import Iterator

from atat_zoo.evaluation.results.format import number
from atat_zoo.evaluation.results.table import Cell
from atat_zoo_paper.cells import change
from atat_zoo_paper.paper_file import ArmsTable, GapsTable, WantedTable
from atat_zoo_paper.paper_studies import KnownStudy, Studies, compared
from atat_zoo_paper.study_tables import BOUND, by, gap_difference


def sentences(wanted: WantedTable, studies: Studies) -> Iterator[str]:
    """Yield a sentence for each difference in a table of arms or gaps; other tables have none."""
    if isinstance(wanted.spec, ArmsTable) and "difference" in wanted.spec.columns:
        yield from _of_arms(wanted, studies)
    elif isinstance(wanted.spec, GapsTable):
        yield from _of_gaps(wanted, studies)


def _of_arms(wanted: WantedTable, studies: Studies) -> Iterator[str]:
    spec: ArmsTable = wanted.spec
    rows = [(row, studies.named(str(row.study or spec.study))) for row in wanted.rows]
    names = {(known.study.name, row.arm): row.name or row.arm for row, known in rows}
    for row, known in rows:
        other, study = known.against(row), known.study.name
        found = compared(known.report, row.arm, other) if known.report else None
        if found is None or "problem" in found:
            continue
        of_other = known.arm(other)
        theirs = of_other["runs"][0]["bound"] if of_other else found["bound"]
        both = f"exp(nats per token) ({found['bound']} and {theirs})"
        what = found["bound"] if theirs == found["bound"] else both
        table = found[spec.intervals]
        said = _said(
            row.name or row.arm,
            names.get((study, other), other),
            what,
            spec.intervals,
            len(found["seeds"]),
            change(table),
        )
        yield f"{said} (study {study})."


def _of_gaps(wanted: WantedTable, studies: Studies) -> Iterator[str]:
    spec: GapsTable = wanted.spec
    known: KnownStudy = studies.named(spec.study)
    parts = {part["what"]: part["rows"] for part in (known.report or {}).get("gaps") or ()}
    names = {(row.arm, row.by): row.name for row in wanted.rows if row.against is None and row.name}
    for row in (row for row in wanted.rows if row.against is not None):
        for what in (what for what in spec.columns if what in parts):
            priced = (each for each in parts[what] if each["arm"] == row.arm)
            price = next(each for each in priced if by(each) == row.by)
            found = gap_difference(price, row.against)
            table = found and found[spec.intervals]
            if table:
                pairs = (row.arm, row.by), (known.study.baseline, row.against)
                one, other = (names.get(pair) or _priced(*pair) for pair in pairs)
                arguments = f"the perplexity of {what}", spec.intervals, len(price["seeds"]), change(table)
                yield f"{_said(one, other, *arguments)} (study {spec.study})."


def _priced(arm: str, sampler: str) -> str:
    return f"{arm} (bound)" if sampler == BOUND else f"{arm} (sampler {sampler})"


def _said(name: str, other: str, what: str, intervals: str, seeds: int, cell: Cell) -> str:
    """Return a sentence that states whether a value is lower, higher or not significantly different."""
    over = f"CI over {'seeds and ' if intervals == 'both' else ''}sequences, {number(seeds, 'seed')}"
    if cell.sure is None:
        return f"{name} and {other} cannot be compared in {what}, because a number is not finite"
    if cell.sure.low <= 0 <= cell.sure.high:
        return f"{name} and {other} do not differ significantly in {what}: {cell.text}, {over}"
    return f"{name} is {'lower' if cell.sure.high < 0 else 'higher'} than {other} in {what}: {cell.text}, {over}"
