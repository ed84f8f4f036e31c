"""The data of a report page from the study.json that `atat study` wrote, without importing torch."""

import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.evaluation.results.format import interval, joined, number
from atat_zoo.evaluation.results.quantity_names import FACTORISATIONS, PERPLEXITY
from atat_zoo.reports.report_data import TABLES, page_data
from atat_zoo.reports.run_records import figure, first
from atat_zoo.studies.differences import FROM_MARGINS, LEGEND, mark, shown
from atat_zoo.studies.markdown import (
    N_GRAM,
    factorisation_of,
    factorisations,
    further_tables,
    labels,
    not_worse,
    point_difference,
    tables,
    with_experiments,
)
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.parsing import from_json, read

Table = dict[str, Any]
_ENDS = ("percent", "percent_low", "percent_high")


def file_of(path: Path) -> Path | None:
    """Return the JSON file of a study, given this file or the study's folder; None for other paths."""
    if path.suffix == ".json":
        return path
    return path / "study.json" if (path / "study.json").is_file() else None


def of_study(path: Path) -> Table:
    """Return the data of a study's page; raise `UserError` if the file is unreadable or not from a study."""
    try:
        report = from_json(read(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{clip(path)} cannot be read: {error}; pass the JSON file that `atat study` wrote") from None
    try:
        data = _page(report, path)
        json.dumps(data, allow_nan=False)
        if not all(isinstance(text, str) for text in _texts(data)):
            raise TypeError
        return data
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise UserError(f"{clip(path)} contains no study results; pass the JSON file that `atat study` wrote") from None


def _texts(data: Table) -> Iterator[Any]:
    """Yield the texts of the page, all of which are str if the results come from a study."""
    yield from (data["title"], *data["verdict"])
    for block in data["blocks"]:
        yield from itertools.chain(block["columns"], *block["rows"])


def _page(report: Table, path: Path) -> Table:
    rows = [row for order, each in enumerate(report["comparisons"]) for row in _arm(order, each)]
    along = [row for panel, grid in enumerate(report.get("grids", ())) for row in _along(panel, grid)]
    drawn = {key: list[Table]() for key in TABLES} | {"arms": rows, "sensitivity": along}
    commands = [f"atat study {shlex.quote(report['file'])} --jobs 2", f"atat report {shlex.quote(str(path))}"]
    blocks = list(_blocks(report))
    return page_data("study", report["study"], list(_verdict(report)), drawn, blocks=blocks, commands=commands)


def _change(difference: Table) -> str:
    return interval(*map(figure, map(shown(difference).get, _ENDS))) + mark(difference)


def _arm(order: int, each: Table) -> Iterator[Table]:
    if "problem" in each:
        return
    mean = shown(each)
    plain = {"arm": each["arm"], "against": each["against"], "order": order}
    if figure(mean["percent"]) is not None:
        ends = {"value": mean["percent"], "low": mean["percent_low"], "high": mean["percent_high"]}
        yield plain | ends | {"kind": "mean", "said": _change(each), "seeds": ", ".join(map(str, each["seeds"]))}
    for seed in each["each"]:
        if figure(seed["percent"]) is not None:
            yield plain | {"kind": "seed", "value": seed["percent"], "seeds": str(seed["seed"])}


def _along(panel: int, grid: Table) -> Iterator[Table]:
    """Yield a row for each grid point that has a bound."""
    about = {"panel": panel, "axis": f"{grid['arm']}: {' × '.join(grid['keys'])}"}
    for order, point in enumerate(grid["points"]):
        ends = {key: figure(point[key]) for key in ("value", "low", "high")}
        if None not in ends.values():
            own, said = point["arm"] == grid["arm"], point_difference(point)
            named = {"point": ", ".join(labels(point["values"])), "bound": point["bound"], "own": own}
            yield about | {"order": order} | named | ends | {"seeds": point["seeds"], "said": said}


def _verdict(report: Table) -> Iterator[str]:
    compared = [each for each in report["comparisons"] if "problem" not in each]
    sure = [each for each in compared if each["both"] and figure(each["both"]["percent"]) is not None]
    lowest = sorted(sure, key=lambda each: each["both"]["percent"])
    best = first(each for each in lowest if each["both"]["percent_high"] < 0)
    found = {factorisation_of(report["arms"][each["arm"]]) for each in compared}
    what = f" in {PERPLEXITY} ({found.pop()})" if len(found) == 1 else " in exp(nats per token)"
    changes = [f"{_change(each)} from {each['against']}" for each in sure]
    if best:
        yield f"{best['arm']} differs by {changes[sure.index(best)]}{what}, over {number(len(best['seeds']), 'seed')}."
    elif sure:
        counts = joined(list(map(str, sorted({len(each["seeds"]) for each in sure}))))
        yield f"No arm is significantly lower{what} than its baseline over {counts} seeds."
    others = [f"{each['arm']} {change}" for each, change in zip(sure, changes, strict=True) if each is not best]
    if others:
        yield f"The other arms: {joined(others)}."
    size = f"{report['sequences']:,} held-out sequences, {report['tokens']:,} tokens"
    masks = f"{number(report['draws'], 'mask')} each, the same for every arm"
    yield f"{size}, {masks}. {LEGEND}"
    halves = report["halves"]
    yield f"{halves[0].upper()}{halves[1:]}; these tables use the {report['half']} half."


def _explained(report: Table) -> Iterator[str]:
    yield from (f"{PERPLEXITY.capitalize()} ({each}): {FACTORISATIONS[each]}." for each in factorisations(report))
    yield f"N-gram model: {N_GRAM}"


def _blocks(report: Table) -> Iterator[Table]:
    """Yield the tables of the study's Markdown page with their explanations."""
    margins = [] if report.get("nats") else [FROM_MARGINS]
    said = {"Arms": [*_explained(report)], "Differences": [LEGEND, *margins, f"Not worse: {not_worse(report)}"]}
    for table in tables(report):
        table = with_experiments(table, report) if table.title == "Arms" else table
        yield attrs.evolve(table, said=[*table.said, *said.get(table.title, [])]).to_json()
    yield from (table.to_json() for table in further_tables(report))
    if test := report["test"]:
        times = f"This split was evaluated {number(test['times'], 'time')}, after all settings were fixed."
        for table in tables(test):
            yield attrs.evolve(table, title=f"Test split: {table.title.lower()}", said=[times, *table.said]).to_json()
    if report["failed"]:
        yield {
            "title": "Failed",
            "columns": ["run", "why"],
            "rows": [list(map(str, e)) for e in report["failed"].items()],
        }
