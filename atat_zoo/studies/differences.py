"""Compute confidence intervals, over seeds and sequences, of a study's values, differences and grid points.

Recorded results contain None for numbers that are not finite. Imports no torch.
"""

import statistics
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

from atat_zoo.evaluation.results.intervals import LEVEL, Interval, of_seeds_and_sequences, percent
from atat_zoo.evaluation.results.quantity_names import exponential
from atat_zoo.studies.study_schema import Grid

Table = dict[str, Any]

# An arm is not worse when the upper end of the interval is at most this many percent.
NOT_WORSE = 1.0
LEGEND = (
    "Intervals are 95 % CIs over seeds and sequences; for a single seed, they are over sequences only, and do not show "
    "how much a different seed would change the result."
)
FROM_MARGINS = (
    "The study was evaluated before NLLs per sequence were recorded, so each CI combines the recorded difference for "
    "each seed with the recorded bootstrap interval, over sequences, of the mean difference."
)


def difference(each: Sequence[Interval], sequences: Interval) -> Table:
    """Return the table of a difference, given its interval for each seed, and the interval of its mean over sequences.

    In the table, `both` is the interval of the mean over seeds and sequences, or None as in `over_both`. `not_worse`
    says whether its upper end is at most `NOT_WORSE` percent.
    """
    both = of_seeds_and_sequences([one.value for one in each], sequences)
    found = {"both": both and both.to_table(), "not_worse": both and percent(both.high) <= NOT_WORSE}
    return {"each": [one.to_table() for one in each], "sequences": sequences.to_table()} | found


def shown(table: Table) -> Table:
    """Return the interval of a difference to show: over seeds and sequences or, without it, over sequences only."""
    return table["both"] or table["sequences"]


def mark(table: Table) -> str:
    """Return why an interval is over sequences only, such as " (one seed)", or an empty string if it is not."""
    if table["both"] or not table["each"]:
        return ""
    return " (one seed)" if len(table["each"]) == 1 else " (all seeds equal)"


def over_sequences(values: Sequence[float], errors: Sequence[float]) -> Interval:
    """Return the mean over seeds with its interval over sequences, from the standard error of each seed."""
    # All seeds share the sequences, so the standard error of the mean is at most the mean of their standard errors.
    mean, half = statistics.fmean(values), NormalDist().inv_cdf((1 + LEVEL) / 2) * statistics.fmean(errors)
    return Interval(value=mean, low=mean - half, high=mean + half)


def over_both(values: Sequence[float], errors: Sequence[float]) -> Interval | None:
    """Return the mean over seeds with its interval over seeds and sequences, or None if all seeds have one value."""
    return of_seeds_and_sequences(values, over_sequences(values, errors))


def of_bound(arm: Table) -> Table:
    """Return an arm's bound, the exponential of its mean nats per token, with its interval; None where not finite."""
    runs = [run["bounds"][run["bound"]] for run in arm["runs"]]
    if any(run["value"] is None for run in runs):
        ends = dict.fromkeys(("value", "low", "high"))
    else:
        nats, errors = [run["nats_per_token"] for run in runs], [run["stderr"] / run["value"] for run in runs]
        found = over_both(nats, errors) or over_sequences(nats, errors)
        ends = {key: exponential(getattr(found, key)) for key in ("value", "low", "high")}
    return {"bound": arm["runs"][0]["bound"], "seeds": len(runs), **ends}


def sensitivity(grids: Iterable[Grid], part: Table) -> list[Table]:
    """Return a table per grid with each point's bound and difference, from what `study_results.tables` returns."""
    compared = {(each["arm"], each["against"]): each for each in part["comparisons"]}

    def difference_of(arm: str, other: str) -> Table | None:
        found = compared.get((arm, other))
        return {"problem": found["problem"]} if found and "problem" in found else found and shown(found)

    return [
        {
            "arm": grid.arm,
            "keys": list(grid.keys),
            "points": [
                {"values": list(values), "arm": arm, **of_bound(part["arms"][arm])}
                | {"difference": difference_of(arm, grid.arm)}
                for values, arm in grid.points
                if arm in part["arms"]
            ],
        }
        for grid in grids
    ]


def alone(trained_with: Sequence[Table]) -> bool:
    """Return whether all records of a run in `processes.ran_with` say that it had the machine to itself."""
    return bool(trained_with) and all(how.get("alone") for how in trained_with)
