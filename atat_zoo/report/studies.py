"""A study's results to the data of a page: the numbers of study.json, as `atat study` wrote them. Imports no torch."""

from __future__ import annotations

import shlex
import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atat_zoo import __version__
from atat_zoo.errors import UserError, clip
from atat_zoo.evaluation.naming import exponential
from atat_zoo.parsing import from_json, read
from atat_zoo.report.collect import TABLES, settings
from atat_zoo.report.recorded import figure
from atat_zoo.report.wording import NONE, interval, joined, number, place, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Table = dict[str, Any]
_WORDS = {True: "yes", False: "no", None: NONE}


def file_of(path: Path) -> Path | None:
    """Return the JSON file of a study, from itself or from the study's folder; None when it is neither."""
    if path.suffix == ".json":
        return path
    return path / "study.json" if (path / "study.json").is_file() else None


def of_study(path: Path) -> Table:
    """Return the data of a study's page.

    Raises:
        UserError: when the file cannot be read, or is no study's.
    """
    try:
        report = from_json(read(path))
        return _page(report, path)
    except (OSError, ValueError) as error:
        raise UserError(f"{clip(path)} cannot be read: {error}; name the JSON that `atat study` wrote") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise UserError(f"{clip(path)} is no study's results; name the JSON that `atat study` wrote") from None


def _page(report: Table, path: Path) -> Table:
    rows = [row for order, each in enumerate(report["comparisons"]) for row in _arm(order, each)]
    return {
        "format": 1,
        "kind": "study",
        "title": report["study"],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "verdict": list(_verdict(report)),
        "overview": None,
        "runs": [],
        "tables": {name: rows if name == "arms" else [] for name in TABLES},
        "notes": {},
        "blocks": list(_blocks(report)),
        "commands": [f"atat study {shlex.quote(report['file'])} --jobs 2", f"atat report {shlex.quote(str(path))}"],
    }


def _change(difference: Table | None) -> str:
    if difference is None:
        return f"{NONE} (one seed)"
    return interval(*(figure(difference[key]) for key in ("percent", "percent_low", "percent_high")))


def _arm(order: int, each: Table) -> Iterator[Table]:
    if "problem" in each:
        return
    found = each["over_seeds"] or each["sequences"]
    plain = {"arm": each["arm"], "against": each["against"], "order": order}
    if figure(found["percent"]) is not None:
        seeds = ", ".join(map(str, each["seeds"]))
        ends = {"value": found["percent"], "low": found["percent_low"], "high": found["percent_high"]}
        yield plain | ends | {"kind": "mean", "said": _change(found), "seeds": seeds}
    for one in each["each"]:
        if figure(one["percent"]) is not None:
            yield plain | {"kind": "seed", "value": one["percent"], "seeds": str(one["seed"])}


def _verdict(report: Table) -> Iterator[str]:
    compared = [each for each in report["comparisons"] if "problem" not in each]
    sure = [each for each in compared if each["over_seeds"] and figure(each["over_seeds"]["percent"]) is not None]
    better = sorted(
        (each for each in sure if each["over_seeds"]["percent_high"] < 0),
        key=lambda each: each["over_seeds"]["percent"],
    )
    bounds = {each["bound"] for each in compared}
    what = f" in {bounds.pop()}" if len(bounds) == 1 else ""
    if better:
        best = better[0]
        change = _change(best["over_seeds"])
        yield f"{best['arm']} is {change} from {best['against']}{what}, over {number(len(best['seeds']), 'seed')}."
    elif sure:
        counts = joined(list(map(str, sorted({len(each["seeds"]) for each in sure}))))
        yield f"No arm is surely lower{what} than what it is compared with, over {counts} seeds."
    others = [
        f"{each['arm']} {_change(each['over_seeds'])} from {each['against']}" for each in sure if each not in better[:1]
    ]
    if others:
        yield f"The others: {joined(others)}."
    yield (
        f"{report['sequences']:,} held-out sequences, {report['tokens']:,} tokens, "
        f"{number(report['draws'], 'mask')} each, the same for every arm; 95 % t-intervals over seeds."
    )
    halves = report["halves"]
    yield f"{halves[0].upper()}{halves[1:]}; these are of the {report['half']} half."


def _blocks(report: Table) -> Iterator[Table]:
    yield {"title": "Arms", "columns": _ARMS, "rows": [_row(report, *each) for each in report["arms"].items()]}
    yield {
        "title": "Differences",
        "said": [
            "Over seeds: mean of the differences and its t-interval; over sequences: bootstrap of the mean. Both 95 %.",
            f"Not worse: the upper ends of both are at most +{report['not_worse_percent']:g} %.",
        ],
        "columns": ["arm", "against", "over seeds", "over sequences", "not worse", "seconds per step ×"],
        "rows": [_compared(each) for each in report["comparisons"]],
    }
    for arm in report["samplers"] or ():
        yield {
            "title": f"Samplers of {arm['arm']}",
            "said": [f"Seeds {joined(list(map(str, arm['seeds'])))}; differences are to the first sampler."],
            "columns": ["sampler", "settings", "quantity", "by seed", "evaluations", "over seeds", "not worse"],
            "rows": [_sampler(row, _digits(arm["samplers"])) for row in arm["samplers"]],
        }
    if report["test"]:
        rows = [_compared(each) for each in report["test"]["comparisons"]]
        columns = ["arm", "against", "over seeds", "over sequences", "not worse", "seconds per step ×"]
        said = [f"Evaluated {number(report['test']['times'], 'time')}, after all settings were fixed."]
        yield {"title": "Test split", "said": said, "columns": columns, "rows": rows}
    if report["failed"]:
        yield {
            "title": "Failed",
            "columns": ["run", "why"],
            "rows": [list(map(str, e)) for e in report["failed"].items()],
        }


_ARMS = ["arm", "experiment", "bound", "mean", "by seed", "steps", "seconds per step", "parameters"]


def _row(report: Table, name: str, arm: Table) -> list[str]:
    runs = arm["runs"]
    own = [run["bounds"][run["bound"]] for run in runs]
    at = max((place(each["stderr"]) for each in own if (figure(each.get("stderr")) or 0) > 0), default=1)
    values = [figure(each["value"]) for each in own]
    nats = [each["nats_per_token"] for each in own]
    mean = NONE if None in values else rounded(exponential(statistics.fmean(nats)), at)
    seeds = ", ".join(
        f"{run['seed']}: {'not finite' if value is None else rounded(value, at)}"
        for run, value in zip(runs, values, strict=True)
    )
    seconds = NONE if arm["seconds_per_step"] is None else f"{arm['seconds_per_step']:.3g}"
    words = " ".join([arm["experiment"], *(each for each in arm["overrides"] if not each.startswith("evaluation."))])
    return [name, words, runs[0]["bound"], mean, seeds, f"{arm['steps']:,}", seconds, f"{arm['parameters']:,}"]


def _compared(each: Table) -> list[str]:
    if "problem" in each:
        return [each["arm"], each["against"], each["problem"], NONE, NONE, NONE]
    ratio = each["ratios"]["seconds_per_step"]
    words = [_change(each["over_seeds"]), _change(each["sequences"]), _WORDS[each["not_worse"]]]
    return [each["arm"], each["against"], *words, NONE if ratio is None else f"{ratio:.2f}"]


def _digits(rows: list[Table]) -> int:
    """Return the decimal place of the values of samplers, to which the finest of their recorded intervals allows."""
    halves = (
        value * (each["percent_high"] - each["percent_low"]) / 200
        for row in rows
        for value, each in zip(row["values"], row.get("each", ()), strict=False)  # the first has no differences
        if None not in (figure(value), *(figure(each[key]) for key in ("percent_low", "percent_high")))
    )
    return max((place(half) for half in halves if half > 0), default=1)


def _sampler(row: Table, at: int) -> list[str]:
    values = ", ".join("not finite" if value is None else rounded(value, at) for value in row["values"])
    compared = [_change(row["over_seeds"]), _WORDS[row["not_worse"]]] if "sequences" in row else [NONE, NONE]
    named = [row["sampler"]["use"], settings(row["sampler"]), row["quantity"]]
    return [*named, values, f"{row['nfe']:.1f}", *compared]
