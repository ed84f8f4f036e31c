"""Tables of promises: what is promised, and the measured value from a study or a page of results."""

from __future__ import annotations

import re
from pathlib import Path

from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY, factorisation
from atat_zoo.evaluation.results.quantity_names import words as metric_words
from atat_zoo.evaluation.results.table import Cell, Column, Table
from atat_zoo.studies.markdown import factorisation_of
from atat_zoo.system.errors import clip, nearest
from atat_zoo.system.parsing import read
from atat_zoo_paper.cells import filled, missing, nothing, of_seeds, within, words
from atat_zoo_paper.paper_file import PromiseRow, PromisesTable, WantedTable
from atat_zoo_paper.paper_studies import CannotShow, KnownStudy, Studies, compared
from atat_zoo_paper.study_tables import difference, sampler_cell, sampler_results

COLUMNS = ("promised", "setting", "quantity", "measured", "source")
_LEGEND = (
    "Measured values are changes. Brackets are 95 % CIs over seeds and held-out sequences, or over sequences only if "
    "there is one seed; brackets from a page are explained there."
)


def promises_table(wanted: WantedTable, studies: Studies) -> Table:
    """Return a table of promises; raise `CannotShow` for an unknown name, or a page without the value."""
    spec: PromisesTable = wanted.spec
    if unknown := next((key for key in spec.columns if key not in COLUMNS), None):
        hint = nearest(unknown, list(COLUMNS))
        raise CannotShow("columns", f"promises have no column {unknown!r}{hint} (columns: {', '.join(COLUMNS)})")
    rows = []
    for i, row in enumerate(wanted.rows):
        if row.study:
            quantity, measured = _of_study(row, studies.named(row.study))
        elif row.page:
            quantity, measured = row.column, _of_page(row, f"rows[{i}].page")
        else:
            quantity, measured = "", nothing(row.unmeasured)
        source = f"study {row.study}" if row.study else row.page
        texts = {"promised": row.promised, "setting": row.setting, "quantity": quantity, "source": source}
        cells = {"measured": measured, **{key: words(text) for key, text in texts.items()}}
        rows.append((row.name, [cells[key] for key in spec.columns]))
    return filled(spec, "promise", [Column(key=key, heading=key) for key in spec.columns], rows, [_LEGEND])


def _of_study(row: PromiseRow, known: KnownStudy) -> tuple[str, Cell]:
    """Return the quantity and the change of an arm from its reference, or of a sampler from the study's first."""
    arm, other = known.arm(row.arm), known.against(row)
    reference, seeds = known.arm(other), len(known.study.seeds[row.arm])
    intervals = "both" if seeds > 1 else "sequences"
    if row.sampler is not None:
        found, _ = sampler_results(known, row.arm, row.sampler)
        if row.column not in ("", "times_as_long"):
            raise CannotShow("rows", f"for a sampler, column is `times_as_long` or left out, not {row.column!r}")
        cell = sampler_cell("difference", intervals, known, found, row.sampler)
        if found is None:
            return "", cell
        of_sampler = found["samplers"][row.sampler - 1]
        quantity = "time" if row.column else f"{PERPLEXITY} ({factorisation(of_sampler['quantity'])})"
        cell = _change(of_sampler.get("seconds_ratio")) if row.column else cell
        return quantity, of_seeds(cell, len(found["seeds"]), seeds, known.command)
    if known.report is None or arm is None or reference is None:
        return "", missing(known.command)
    cell = difference(known, row, intervals)
    if not row.column:
        names = dict.fromkeys(map(factorisation_of, (arm, reference)))
        return f"{PERPLEXITY} ({' against '.join(names)})", cell
    ratios = (compared(known.report, row.arm, other) or {}).get("ratios") or {}
    if row.column not in ratios:
        there = f"{nearest(row.column, list(ratios))} (ratios: {', '.join(ratios) or 'none'})"
        raise CannotShow("rows", f"the study {known.study.name!r} has no ratio {row.column!r}{there}")
    return metric_words(row.column), _change(ratios[row.column])


def _change(ratio: float | None) -> Cell:
    """Return a cell with a ratio as a change in percent."""
    if ratio is None:
        return nothing()
    value = 100 * (ratio - 1)
    return Cell(text=f"{value:+.1f} %".replace("-", "−"), value=value)


_NUMBER = r"(\d+(?:\.\d+)?)"
_RATIO = re.compile(rf"{_NUMBER}(?: \[{_NUMBER}, {_NUMBER}\])?")


def _of_page(row: PromiseRow, key: str) -> Cell:
    """Return the change that a page's ratio is, looked up in the page's tables by its row and column."""
    try:
        lines = read(Path(row.page)).decode().splitlines()
    except (OSError, ValueError):
        raise CannotShow(key, f"the page {clip(row.page)} cannot be read; give a Markdown page") from None
    found, headings = list[str](), list[str]()
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        headings = (headings or cells) if cells else []
        if row.column in headings and cells[0] == row.row:
            found += cells[headings.index(row.column) :][:1]
    ratio = _RATIO.fullmatch(found[0]) if len(found) == 1 else None
    if ratio is None:
        problem = f"expected one ratio, such as 1.41 or 1.41 [1.31, 1.50], got {', '.join(found) or 'none'}"
        raise CannotShow(key, f"{clip(row.page)}, row {row.row!r}, column {row.column!r}: {problem}")
    value, *ends = [100 * (float(number) - 1) for number in ratio.groups() if number]
    return within(Interval(value=value, low=ends[0], high=ends[1]), " %", "+") if ends else _change(float(ratio[1]))
