"""The results of a study as Markdown, from the same numbers as study.json."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from atat_zoo.evaluation.naming import exponential

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Table = dict[str, Any]
_NONE = "—"
_WORDS = {True: "yes", False: "no", None: _NONE}


def page(report: Table) -> str:
    """Return the page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Table) -> Iterator[str]:
    yield f"# Study {report['study']}"
    yield ""
    yield f"Written by `atat study {report['file']}`; every number is in the JSON file beside this page."
    yield ""
    yield f"- {report['halves']}; these tables are of the **{report['half']}** half."
    yield from _method(report)
    yield (
        "- *count table*: the counts of adjacent tokens in the training text as a model, under the same masks, and "
        "how far the arm is from it."
    )
    yield (
        "- *over seeds*: mean of the differences of the seeds and its t-interval; *over sequences*: bootstrap of the "
        "difference averaged over seeds. Both 95 %, paired by sequence and mask."
    )
    yield (
        f"- *not worse*: the upper ends of both intervals are at most +{report['not_worse_percent']:g} %. Costs are "
        "medians over seeds; seconds are those of the optimizer steps."
    )
    for line in _machines(report):
        yield f"- {line}"
    yield from _tables(report)
    for arm in report["samplers"] or ():
        yield from _samplers(arm)
    if report["sweep"]:
        yield from _sweep(report["sweep"])
    if report["test"]:
        times = report["test"]["times"]
        yield from ("", "## Test split", "")
        yield "Evaluated once, after all settings were fixed." if times == 1 else f"**Evaluated {times} times.**"
        yield from _method(report["test"])
        yield from _tables(report["test"])
    for title, items in (
        ("Failed", [f"`{run}`: {why}" for run, why in report["failed"].items()]),
        ("Left out", [f"`{arm}`: what its settings follow from is not finished" for arm in report["left_out"]]),
    ):
        if items:
            yield from ("", f"## {title}", "", *(f"- {item}" for item in items))


def _method(part: Table) -> Iterator[str]:
    methods = " and ".join(dict.fromkeys(arm["method"] for arm in part["arms"].values()))
    yield (
        f"- {part['sequences']:,} sequences, {part['tokens']:,} tokens, "
        f"{part['draws']} draws each by {methods or _NONE}, mask seed {part['seed']}."
    )


def _machines(report: Table) -> Iterator[str]:
    """Say what the runs were trained on; times of different settings are not compared without a word."""
    seen = {}
    for arm in report["arms"].values():
        for run in arm["runs"]:
            machine, computed = run["machine"], run["computed"]
            with_ = ", ".join(
                f"{_plural(how['jobs'], 'training')} at a time, {_plural(how['threads'], 'thread')} each"
                for how in run["trained_with"]
            )
            words = f"{machine.get('cores')} cores of {machine.get('processor')}, {computed.get('precision')}"
            device = f", on {computed['device']}" if computed.get("device", "cpu") != "cpu" else ""
            seen[f"{words}{device}; {with_ or 'by atat train'}"] = 1
    if seen:
        yield f"Trained with {' and with '.join(seen)}; torch {report['packages'].get('torch')}."
    if len(seen) > 1:
        yield "**Not all runs were trained alike: their seconds and memory are not comparable.**"


def _tables(part: Table) -> Iterator[str]:
    yield ""
    rows = []
    for name, arm in part["arms"].items():
        runs = arm["runs"]
        bound = runs[0]["bound"]
        values = [run["bounds"][bound]["value"] for run in runs]
        mean = (
            exponential(statistics.fmean(run["bounds"][bound]["nats_per_token"] for run in runs))
            if None not in values
            else None
        )
        rows.append(
            [
                name,
                bound,
                _number(mean, ".2f"),
                ", ".join(f"{run['seed']}: {_number(value, '.2f')}" for run, value in zip(runs, values, strict=True)),
                _beside(runs),
                _number(arm["steps"], ",.0f"),
                _number(arm["tokens"], ",.0f"),
                _number(arm["seconds"], ",.1f"),
                _number(arm["seconds_per_step"], ".4g"),
                _number(arm["peak_memory"] and arm["peak_memory"] / 2**20, ",.0f", " MiB"),
                f"{arm['parameters']:,}",
            ]
        )
    columns = [
        "arm",
        "bound",
        "geometric mean",
        "seed: value",
        "count table",
        "steps",
        "tokens",
        "seconds",
        "seconds per step",
    ]
    yield from _table([*columns, "peak memory", "parameters"], rows)
    yield ""
    rows = []
    for each in part["comparisons"]:
        if "problem" in each:
            rows.append([each["arm"], each["against"], each["problem"], *[_NONE] * 6])
            continue
        ratios = each["ratios"]
        rows.append(
            [
                each["arm"],
                each["against"],
                _change(each["over_seeds"]) if each["over_seeds"] else f"{_NONE} (one seed)",
                _change(each["sequences"]),
                _WORDS[each["not_worse"]],
                *(_number(ratios[key], ".3f") for key in ("tokens", "seconds", "peak_memory", "parameters")),
            ]
        )
    if rows:
        columns = ["arm", "against", "over seeds", "over sequences", "not worse"]
        yield from _table([*columns, "tokens ×", "seconds ×", "peak memory ×", "parameters ×"], rows)


def _beside(runs: Sequence[Table]) -> str:
    """Return the count table's value, and how far the runs are above or below it: the mean of their differences."""
    tables = [run["count_table"] for run in runs]
    if None in tables:
        return _NONE
    differences = [table["difference"] for table in tables]
    if None in differences:
        return f"{_number(tables[0]['value'], '.2f')} (not finite)"
    return f"{tables[0]['value']:.2f} ({100 * (exponential(statistics.fmean(differences)) - 1):+.1f} %)"


def _samplers(arm: Table) -> Iterator[str]:
    """Yield the table of an arm's samplers."""
    seeds = ", ".join(map(str, arm["seeds"]))
    yield from ("", f"## Samplers of {arm['arm']}", "")
    on = " and ".join(
        f"{each['cores']} cores of {each['processor']}, {_plural(each['threads'], 'thread')}, {each['device']}"
        for each in arm["on"]
    )
    yield f"Seeds {seeds}; {arm['sequences']:,} sequences of the half; the others against the first; timed on {on}.\n"
    rows = []
    for row in arm["samplers"]:
        settings = dict(row["sampler"])
        compared = [_NONE] * 4
        if "sequences" in row:
            compared = [
                _change(row["over_seeds"]) if row["over_seeds"] else f"{_NONE} (one seed)",
                _change(row["sequences"]),
                _WORDS[row["not_worse"]],
                _number(row["seconds_ratio"], ".3f"),
            ]
        values = ", ".join(_number(value, ".2f") for value in row["values"])
        name = settings.pop("use")
        cost = [_number(row["nfe"], ".1f"), _number(row["seconds"], ".2f")]
        rows.append([name, json.dumps(settings), row["quantity"], values, *cost, *compared])
    columns = ["sampler", "settings", "quantity", "value by seed", "NFE", "seconds"]
    yield from _table([*columns, "over seeds", "over sequences", "not worse", "seconds ×"], rows)


def _sweep(sweep: Table) -> Iterator[str]:
    yield from (
        "",
        "## Sweep",
        "",
        f"Seed {sweep['seed']}, {sweep['half']} half, nats per token; the chosen point is bold.",
        "",
    )
    points = list(dict.fromkeys(point for arm in sweep["arms"].values() for point in arm["nats_per_token"]))
    rows = []
    for name, arm in sweep["arms"].items():
        cells = []
        for point in points:
            cell = _number(arm["nats_per_token"].get(point), ".4f")
            cells.append(f"**{cell}**" if point == arm["chosen"] else cell)
        rows.append([name, *cells, "yes" if arm["at_an_end"] else "no"])
    yield from _table(["arm", *points, "best at an end"], rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in [columns, ["---"] * len(columns), *rows]:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _change(difference: Table, digits: int = 2) -> str:
    if any(difference[key] is None for key in ("percent", "percent_low", "percent_high")):
        return "not finite"
    value, low, high = (f"{difference[key]:+.{digits}f}" for key in ("percent", "percent_low", "percent_high"))
    return f"{value} % [{low}, {high}]"


def _number(value: float | None, how: str, unit: str = "") -> str:
    return _NONE if value is None else f"{value:{how}}{unit}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
