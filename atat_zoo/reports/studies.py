"""A study's results to the data of a page: the numbers of study.json, as `atat study` wrote them. Imports no torch."""

import itertools
import json
import shlex
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from atat_zoo.errors import UserError, clip
from atat_zoo.evaluation.results.format import NONE, cell, interval, joined, number, place, rounded, told_apart
from atat_zoo.evaluation.results.naming import exponential
from atat_zoo.reports.collect import TABLES, page_data
from atat_zoo.reports.recorded import figure, first
from atat_zoo.studies.differences import FROM_MARGINS, LEGEND, completed, mark, shown
from atat_zoo.studies.markdown import METRICS, gap_legend, gap_table, metric_table, task_tables
from atat_zoo.studies.sensitivity import LEGEND as SENSITIVITY
from atat_zoo.studies.sensitivity import labels, said, sensitivity_table
from atat_zoo.system.parsing import from_json, read

Table = dict[str, Any]
_WORDS = {True: "yes", False: "no", None: NONE}


def file_of(path: Path) -> Path | None:
    """Return the JSON file of a study, from itself or from the study's folder; None when it is neither."""
    if path.suffix == ".json":
        return path
    return path / "study.json" if (path / "study.json").is_file() else None


def of_study(path: Path) -> Table:
    """Return the data of a study's page; what cannot be read, or is no study's, is a UserError."""
    try:
        report = from_json(read(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{clip(path)} cannot be read: {error}; name the JSON that `atat study` wrote") from None
    try:
        data = _page(completed(report), path)
        json.dumps(data, allow_nan=False)
        if not all(isinstance(text, str) for text in _texts(data)):
            raise TypeError
        return data
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise UserError(f"{clip(path)} is no study's results; name the JSON that `atat study` wrote") from None


def _texts(data: Table) -> Iterator[Any]:
    """Yield what the page says, which is text where the results are a study's."""
    yield from (data["title"], *data["verdict"])
    for block in data["blocks"]:
        yield from itertools.chain(block["columns"], *block["rows"])


def _page(report: Table, path: Path) -> Table:
    rows = [row for order, each in enumerate(report["comparisons"]) for row in _arm(order, each)]
    along = [row for panel, grid in enumerate(report.get("grids", ())) for row in _along(panel, grid)]
    tables = {key: list[Table]() for key in TABLES} | {"arms": rows, "sensitivity": along}
    commands = [f"atat study {shlex.quote(report['file'])} --jobs 2", f"atat report {shlex.quote(str(path))}"]
    blocks = list(_blocks(report))
    return page_data("study", report["study"], list(_verdict(report)), tables, blocks=blocks, commands=commands)


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
    """Yield a row for each point of a grid that has a bound."""
    about = {"panel": panel, "axis": f"{grid['arm']}: {' × '.join(grid['keys'])}"}
    for order, point in enumerate(grid["points"]):
        ends = {key: figure(point[key]) for key in ("value", "low", "high")}
        if None not in ends.values():
            named = {"point": ", ".join(labels(point)), "bound": point["bound"], "own": point["arm"] == grid["arm"]}
            yield about | {"order": order} | named | ends | {"seeds": point["seeds"], "said": said(point)}


def _verdict(report: Table) -> Iterator[str]:
    compared = [each for each in report["comparisons"] if "problem" not in each]
    sure = [each for each in compared if each["both"] and figure(each["both"]["percent"]) is not None]
    lowest = sorted(sure, key=lambda each: each["both"]["percent"])
    best = first(each for each in lowest if each["both"]["percent_high"] < 0)
    bounds = {each["bound"] for each in compared}
    what = f" in {bounds.pop()}" if len(bounds) == 1 else ""
    changes = [f"{_change(each)} from {each['against']}" for each in sure]
    if best:
        yield f"{best['arm']} is {changes[sure.index(best)]}{what}, over {number(len(best['seeds']), 'seed')}."
    elif sure:
        counts = joined(list(map(str, sorted({len(each["seeds"]) for each in sure}))))
        yield f"No arm is surely lower{what} than what it is compared with, over {counts} seeds."
    others = [f"{each['arm']} {change}" for each, change in zip(sure, changes, strict=True) if each is not best]
    if others:
        yield f"The others: {joined(others)}."
    size = f"{report['sequences']:,} held-out sequences, {report['tokens']:,} tokens"
    masks = f"{number(report['draws'], 'mask')} each, the same for every arm"
    yield f"{size}, {masks}. {LEGEND}"
    halves = report["halves"]
    yield f"{halves[0].upper()}{halves[1:]}; these are of the {report['half']} half."


def _blocks(report: Table) -> Iterator[Table]:
    yield _block("Arms", _ARMS, [_row(*each) for each in report["arms"].items()])
    worse = f"Not worse: the upper end of the interval is at most +{report['not_worse_percent']:g} %."
    margins = [] if report.get("nats") else [FROM_MARGINS]
    yield _block("Differences", _DIFFERENCES, map(_compared, report["comparisons"]), LEGEND, *margins, worse)
    for grid in report.get("grids", ()):
        yield _block(
            f"Sensitivity of {grid['arm']} to {' × '.join(grid['keys'])}", *sensitivity_table(grid), SENSITIVITY, LEGEND
        )
    columns, rows = metric_table(report)
    if len(columns) > 1:
        yield _block("Metrics", columns, rows, f"{METRICS}.")
    for arm in report["samplers"] or ():
        seeds = f"Seeds {joined(list(map(str, arm['seeds'])))}; differences are to the first sampler."
        digits, words = _digits(arm["samplers"]), told_apart([row["sampler"] for row in arm["samplers"]])
        rows = [_sampler(row, digits, of) for row, of in zip(arm["samplers"], words, strict=True)]
        yield _block(f"Samplers of {arm['arm']}", _SAMPLERS, rows, seeds)
    if report.get("gaps"):
        yield _block("Gaps", *gap_table(report), *gap_legend(report))
    for title, table, notes in task_tables(report):
        yield _block(f"Task {title}", *table, *(note.removeprefix("- ") for note in notes))
    if report["test"]:
        times = f"Evaluated {number(report['test']['times'], 'time')}, after all settings were fixed."
        yield _block("Test split", _DIFFERENCES, map(_compared, report["test"]["comparisons"]), times)
    if report["failed"]:
        yield _block("Failed", ["run", "why"], [list(map(str, each)) for each in report["failed"].items()])


_ENDS = ("percent", "percent_low", "percent_high")
_ARMS = ["arm", "experiment", "bound", "mean", "by seed", "steps", "seconds per step", "parameters"]
_DIFFERENCES = ["arm", "against", "difference", "not worse", "seconds per step ×"]
_SAMPLERS = ["sampler", "settings", "quantity", "by seed", "evaluations", "difference", "not worse"]


def _block(title: str, columns: list[str], rows: Iterable[list[str]], *said: str) -> Table:
    return {"title": title, **({"said": said} if said else {}), "columns": columns, "rows": list(rows)}


def _row(name: str, arm: Table) -> list[str]:
    runs = arm["runs"]
    own = [run["bounds"][run["bound"]] for run in runs]
    at = max((place(each["stderr"]) for each in own if (figure(each.get("stderr")) or 0) > 0), default=1)
    values = [figure(each["value"]) for each in own]
    nats = [each["nats_per_token"] for each in own]
    mean = NONE if None in values else rounded(exponential(statistics.fmean(nats)), at)
    said = ["not finite" if value is None else rounded(value, at) for value in values]
    seeds = ", ".join(f"{run['seed']}: {value}" for run, value in zip(runs, said, strict=True))
    costs = cell(arm["seconds_per_step"], ".3g"), f"{arm['parameters']:,}"
    words = " ".join([arm["experiment"], *(each for each in arm["overrides"] if not each.startswith("evaluation."))])
    return [name, words, runs[0]["bound"], mean, seeds, f"{arm['steps']:,}", *costs]


def _compared(each: Table) -> list[str]:
    if "problem" in each:
        return [each["arm"], each["against"], each["problem"], NONE, NONE]
    words = [_change(each), _WORDS[each["not_worse"]]]
    return [each["arm"], each["against"], *words, cell(each["ratios"]["seconds_per_step"], ".2f")]


def _digits(rows: list[Table]) -> int:
    """Return the decimal place of the values of samplers, to which the finest of their recorded intervals allows."""
    halves = (
        value * (each["percent_high"] - each["percent_low"]) / 200
        for row in rows
        for value, each in zip(row["values"], row.get("each", ()), strict=False)  # the first has no differences
        if None not in (figure(value), *(figure(each[key]) for key in ("percent_low", "percent_high")))
    )
    return max((place(half) for half in halves if half > 0), default=1)


def _sampler(row: Table, at: int, of: str) -> list[str]:
    values = ", ".join("not finite" if value is None else rounded(value, at) for value in row["values"])
    compared = [_change(row), _WORDS[row["not_worse"]]] if "sequences" in row else [NONE, NONE]
    named = [row["sampler"]["use"], of, row["quantity"]]
    return [*named, values, f"{row['nfe']:.1f}", *compared]
