"""Intervals of a study, all by `of_seeds_and_sequences`: of values and differences, and in older results. No torch.

Results that are recorded have None for a number that is not finite.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Any

from atat_zoo.evaluation.results.intervals import LEVEL, Interval, of_seeds_and_sequences, percent
from atat_zoo.evaluation.results.naming import exponential

Table = dict[str, Any]

# An arm is not worse when the upper end of the interval is at most this many percent.
NOT_WORSE = 1.0
LEGEND = (
    "Intervals are 95 % intervals for other seeds and other sequences; those of one seed are over sequences only, and "
    "do not say how far another seed would lie."
)
FROM_MARGINS = (
    "The study was measured before nats per sequence were recorded: the interval of every row is from the difference "
    "of each seed and the bootstrap over sequences of their mean."
)


def difference(each: Sequence[Interval], sequences: Interval) -> Table:
    """Return the table of a difference: of each seed, of their mean over sequences, and over seeds and sequences."""
    return {"each": [one.to_table() for one in each], "sequences": sequences.to_table()} | _of_both(
        [one.value for one in each], sequences
    )


def _of_both(each: Sequence[float], sequences: Interval) -> Table:
    both = of_seeds_and_sequences(each, sequences)
    return {"both": both and both.to_table(), "not_worse": both and percent(both.high) <= NOT_WORSE}


def shown(table: Table) -> Table:
    """Return the interval that is shown of a difference: for other seeds and sequences, of one seed for sequences."""
    found: Table = table["both"] or table["sequences"]
    return found


def mark(table: Table) -> str:
    """Return what is said behind an interval over sequences only."""
    if table["both"] or not table["each"]:
        return ""
    return " (one seed)" if len(table["each"]) == 1 else " (all seeds the same)"


def over_sequences(values: Sequence[float], errors: Sequence[float]) -> Interval:
    """Return the mean over seeds of a value with its interval over sequences, by the standard error of each seed.

    The error of the mean is that of the seeds at most, on average: the sequences are the same.
    """
    mean, half = statistics.fmean(values), NormalDist().inv_cdf((1 + LEVEL) / 2) * statistics.fmean(errors)
    return Interval(value=mean, low=mean - half, high=mean + half)


def over_both(values: Sequence[float], errors: Sequence[float]) -> Interval | None:
    """Return the same over seeds and sequences."""
    return of_seeds_and_sequences(values, over_sequences(values, errors))


def of_bound(arm: Table) -> Table:
    """Return the bound of an arm, the exponential of its mean nats per token, with its interval."""
    runs = [run["bounds"][run["bound"]] for run in arm["runs"]]
    if any(run["value"] is None for run in runs):
        ends = dict.fromkeys(("value", "low", "high"))
    else:
        nats, errors = [run["nats_per_token"] for run in runs], [run["stderr"] / run["value"] for run in runs]
        found = over_both(nats, errors) or over_sequences(nats, errors)
        ends = {key: exponential(getattr(found, key)) for key in ("value", "low", "high")}
    return {"bound": arm["runs"][0]["bound"], "seeds": len(runs), **ends}


def of_point(arm: Table, compared: Table | None) -> Table:
    """Return the bound of a point of a grid, and its difference from the arm of the grid where that is another."""
    difference = compared and {"problem": compared.get("problem")}
    return of_bound(arm) | {"difference": shown(compared) if compared and "problem" not in compared else difference}


def alone(trained_with: Sequence[Table]) -> bool:
    """Return whether a training ran beside nothing else, as far as is recorded: only then are its seconds shown."""
    return bool(trained_with) and all(how.get("alone") for how in trained_with)


def completed(report: Table) -> Table:
    """Complete a study's recorded results, in place: intervals as above, and no seconds of trainings beside others."""
    for table in _tables(report, lambda table: "each" in table and "both" not in table):
        table.pop("over_seeds", None)
        if "sequences" in table:
            each = [math.nan if one["nats_per_token"] is None else one["nats_per_token"] for one in table["each"]]
            ends = [math.nan if table["sequences"][key] is None else table["sequences"][key] for key in _ENDS]
            table |= _of_both(each, Interval(**dict(zip(("value", "low", "high"), ends, strict=True))))
        else:  # of a task, or a step multiplier, which has no interval over sequences
            items = table.get("over_items")
            both = of_seeds_and_sequences(table["each"], Interval(**items)) if items else None
            table["both"] = both and {key: getattr(both, key) for key in ("value", "low", "high")}
    for part in filter(None, (report, report.get("test"))):
        timed = []
        for name, arm in part["arms"].items():
            runs = arm.get("runs", ())
            if all(alone(run["trained_with"]) for run in runs):
                timed.append(name)
                continue
            for table in (arm, *runs):
                table |= _NO_SECONDS
        for each in (each for each in part["comparisons"] if "ratios" in each):
            if not {each["arm"], each["against"]} <= set(timed):
                each["ratios"] |= _NO_SECONDS
    compared = {(each["arm"], each["against"]): each for each in report["comparisons"]}
    for grid in report.get("grids", ()):
        for point in grid["points"]:
            point |= of_point(report["arms"][point["arm"]], compared.get((point["arm"], grid["arm"])))
    return report


_NO_SECONDS = {"seconds": None, "seconds_per_step": None}
_ENDS = ("nats_per_token", "low", "high")


def _tables(value: Any, wanted: Callable[[Table], bool]) -> Iterator[Table]:
    """Yield the tables inside of a JSON value that are wanted, the inner ones first."""
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _tables(each, wanted)
    if isinstance(value, dict) and wanted(value):
        yield value
