"""Compute the results of a study: its arms and the differences between them, per seed and over seeds.

In the table of a difference, `sequences` is the bootstrap interval over held-out sequences of the mean over seeds, and
`both` is the interval over seeds and sequences. They are computed from the nats per sequence, which `nats_of` yields.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import torch

from atat_zoo.diffusion.bracket import Bracket
from atat_zoo.evaluation.policy import bracket_value
from atat_zoo.evaluation.results.history import history
from atat_zoo.evaluation.results.intervals import LEVEL, RESAMPLES, interval, of_seeds_and_sequences, paired, resampled
from atat_zoo.evaluation.results.quantity_names import exponential, title
from atat_zoo.evaluation.results.store import finite
from atat_zoo.studies.differences import alone, difference
from atat_zoo.studies.run_measurement import Measured, Priced, Written, spread
from atat_zoo.studies.study_schema import Study, StudyRun

_COSTS = ("steps", "tokens", "seconds", "seconds_per_step", "peak_memory")

ByArm = dict[str, dict[int, Measured]]  # arm, seed


def choices(study: Study, measured: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """Return, per swept arm, its best point, whether that is the first or last one, and each point's nats per token."""
    assert study.sweep is not None
    points, chosen = list(study.sweep.points), {}
    for arm in study.swept:
        of_arm = [each for each in measured if each.run.arm == arm]
        nats = {str(each.run.point): float(each.nats[each.compared].sum() / each.count.sum()) for each in of_arm}
        nats = {point: value for point, value in nats.items() if math.isfinite(value)}
        if nats:
            best = min(nats, key=nats.__getitem__)
            at_an_end = len(points) > 2 and best in (points[0], points[-1])  # the optimum may be outside the range
            chosen[arm] = {"chosen": best, "at_an_end": at_an_end, "nats_per_token": nats}
    return chosen


def steps_in_the_time_of(study: Study, arm: str, runs: Mapping[str, Sequence[StudyRun]]) -> int | None:
    """Return how many steps an arm takes in the time of its `match_seconds`, by median times; None without times."""

    def times(name: str | None) -> list[tuple[float, int]]:
        pasts = [history(run.folder, run.experiment) for run in runs.get(name or "", ()) if run.finished]
        return [(past.seconds, past.clock[-1][0]) for past in pasts if past.seconds]

    spec = study.arms[arm]
    mine, other = times(spec.like), times(spec.match_seconds)
    if not mine or not other:
        return None
    per_step = statistics.median(seconds / steps for seconds, steps in mine)
    return max(1, round(statistics.median(seconds for seconds, _ in other) / per_step))


def arm_table(study: Study, arm: str, measured: Mapping[int, Measured], how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of an arm: its settings, its costs (medians over seeds) and its runs."""
    runs = [_run_table(each, how) for each in measured.values()]
    first, chain = next(iter(measured.values())), study.chain(arm)
    return {
        "experiment": study.arms[chain[0]].experiment,
        "overrides": study.overrides_of(arm),
        "point": first.run.point,
        "match_seconds": study.arms[arm].match_seconds,
        "method": first.method,
        "parameters": first.parameters,
        "parameters_without_embeddings": first.without_embeddings,
        **{key: _median([run[key] for run in runs]) for key in _COSTS},
        "runs": runs,
    }


def _run_table(measured: Measured, how: Mapping[str, Any]) -> dict[str, Any]:
    run, past = measured.run, history(measured.run.folder, measured.run.experiment, until=measured.step)
    lines = run.folder.read_metrics(damaged=True)
    keys = ("value", "stderr", "nats_per_token", "bits_per_byte")
    trained_with = how.get(run.name, [])
    seconds = past.seconds if alone(trained_with) else None
    counted = measured.beside() if measured.compared == measured.quantity else None  # under the same masks
    return {
        "seed": run.seed,
        "run": run.name,
        "step": measured.step,
        "bounds": {title(name): {key: getattr(b, key) for key in keys} for name, b in measured.bounds().items()},
        "bound": title(measured.compared),
        "metrics": {name: attrs.asdict(value) for name, value in measured.metrics.items()},
        "ngram_prior": counted and counted.to_table(),
        "steps": measured.step,
        "tokens": int(lines[-1]["tokens"]) if lines and "tokens" in lines[-1] else None,
        "seconds": seconds,
        "seconds_per_step": seconds / past.clock[-1][0] if seconds else None,
        "peak_memory": past.peak_memory,
        "computed": past.computed,
        "trained_with": trained_with,
        "machine": {key: value for key, value in run.folder.machine().items() if key in ("processor", "cores")},
        "weights_sha256": measured.weights,
    }


def compare(one: Mapping[int, Measured], other: Mapping[int, Measured], how: Mapping[str, Any]) -> dict[str, Any]:
    """Return an arm's differences from another arm over their common seeds, or why the two cannot be compared."""
    seeds = [seed for seed in one if seed in other]
    if not seeds:
        return {"problem": "the arms have no common seed with finished runs"}
    pairs = []
    for seed in seeds:
        if problem := apart(one[seed], other[seed]):
            return {"problem": problem}
        mine, theirs = bounds_of(one[seed], other[seed])
        pairs.append((one[seed].nats[mine], other[seed].nats[theirs]))
    differences = paired_over(pairs, one[seeds[0]].count)
    differences["each"] = [{"seed": seed, **each} for seed, each in zip(seeds, differences["each"], strict=True)]
    ratios: dict[str, list[float | None]] = {}
    for seed in seeds:
        a, b = (_run_table(arm[seed], how) | {"parameters": arm[seed].parameters} for arm in (one, other))
        for key in (*_COSTS, "parameters"):
            ratios.setdefault(key, []).append(a[key] / b[key] if a[key] and b[key] else None)
    medians = {key: _median(values) for key, values in ratios.items()}
    return {"bound": title(mine), "seeds": seeds, **differences, "ratios": medians}


def bounds_of(one: Measured, other: Measured) -> tuple[str, str]:
    """Return the bounds to compare: of `one`, its arm's `bound` or else `other.compared`; of `other`, `compared`."""
    return one.run.bound or other.compared, other.compared


def apart(one: Measured, other: Measured) -> str | None:
    """Return why two runs with the same seed cannot be compared, or None."""
    mine, _ = bounds_of(one, other)
    if mine not in one.nats:
        return f"no bound {mine!r} (bounds: {', '.join(one.nats)})"
    return None if one.text == other.text else "different held-out tokens, because the corpus or tokenizer differs"


def multipliers(study: Study, measured: ByArm) -> list[dict[str, Any]]:
    """Return the step multiplier m of each arm: the baseline needs m times as many steps to reach the same bound.

    Nats per token are interpolated in ln steps between at least three budgets of the baseline, for each common seed.
    The interval is computed for ln m over seeds and sequences. Outside the curve, m is a limit given by the end of the
    curve; without a falling curve, or with non-finite numbers, the table has None.
    """
    curve, found = study.at_budgets(study.baseline), []
    if len(curve) < 3:
        return []
    for arm in (arm for arm in measured if arm not in curve):
        each, logs, samples = [], [], []
        for seed, run in measured[arm].items():
            budgets = [measured[budget][seed] for budget in curve if seed in measured.get(budget, {})]
            if len(budgets) < len(curve) or any(apart(run, budget) for budget in budgets):
                continue
            mine, theirs = bounds_of(run, budgets[0])
            budgets.sort(key=lambda budget: budget.step)
            nats = torch.stack([run.nats[mine], *(budget.nats[theirs] for budget in budgets), run.count.double()], 1)
            steps = [run.step, *(budget.step for budget in budgets)]
            log = float(_log_multiplier(steps, nats.sum(0)[None]))
            where = _WHERE.get(log, "unknown" if math.isnan(log) else "inside")
            end = steps[1] if where == "before" else steps[-1]
            value = {"inside": math.exp(log), "unknown": None}.get(where, end / run.step)
            each.append({"seed": seed, "multiplier": value, "where": where})
            logs.append(log)
            samples.append(_log_multiplier(steps, resampled(nats, purpose="bootstrap", seed=0)))
        if each:
            found.append({"arm": arm, "curve": curve, "each": each, "both": _of_logs(logs, samples)})
    return found


_WHERE = {-math.inf: "before", math.inf: "beyond"}


def _of_logs(logs: Sequence[float], samples: Sequence[torch.Tensor]) -> dict[str, float] | None:
    """Return the mean of ln m and its interval, converted to m; None if m is unknown for some seed or resample."""
    sequences = interval(statistics.fmean(logs), torch.stack(list(samples)).mean(0))
    both = of_seeds_and_sequences(logs, sequences) if all(map(math.isfinite, logs)) else None
    if both is None or not math.isfinite(both.width):
        return None
    return {key: exponential(getattr(both, key)) for key in ("value", "low", "high")}


def _log_multiplier(steps: Sequence[int], sums: torch.Tensor) -> torch.Tensor:
    """Return ln m for S resamples from sums [S, 2 + B] of the arm's nats, the nats of B budgets, and the tokens.

    `steps` lists the number of steps of the arm, followed by those of the budgets in rising order. ln m is −∞ before
    the curve, ∞ after it, and NaN if unknown.
    """
    (mine, *curve), at = (sums[:, :-1] / sums[:, -1:]).unbind(1), torch.tensor(steps).double().log()
    found = torch.where(mine > curve[0], -math.inf, math.inf)
    unknown = mine.isinf() | mine.isnan()
    for i, (high, low) in enumerate(pairwise(curve), 1):
        inside = at[i] + (high - mine) / (high - low) * (at[i + 1] - at[i]) - at[0]
        found = torch.where((low <= mine) & (mine <= high) & found.isinf(), inside, found)
        unknown |= ~(high > low)
    return found.masked_fill(unknown, math.nan)


def _median(values: Sequence[Any]) -> Any:
    if not values or None in values:
        return None
    median = statistics.median(values)
    return int(median) if isinstance(values[0], int) and median == int(median) else median


def tables(study: Study, measured: ByArm, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arms and their comparisons on one part of the held-out text."""
    texts = [(len(each.count), int(each.count.sum())) for arm in measured.values() for each in arm.values()]
    sequences, tokens = max(texts, default=(0, 0))
    return {
        "sequences": sequences,
        "tokens": tokens,
        "fewest_sequences": min(texts, default=(0, 0))[0],
        "draws": study.held_out.mask_samples,
        "seed": study.held_out.seed,
        "level": LEVEL,
        "resamples": RESAMPLES,
        "arms": {arm: arm_table(study, arm, found, how) for arm, found in measured.items() if found},
        "comparisons": [
            {"arm": arm, "against": other, **compare(measured[arm], measured.get(other, {}), how)}
            for arm in study.arms
            if measured.get(arm)
            for other in study.against(arm)
        ],
        "multipliers": multipliers(study, measured),
    }


def sampler_tables(written: Mapping[str, Sequence[Sequence[Written]]]) -> list[dict[str, Any]]:
    """Return a table per arm with a row per sampler: values of all seeds, costs, and differences from the first row."""
    arms = []
    for arm, runs in written.items():
        rows = []
        for number, each in enumerate(zip(*runs, strict=True)):
            values = [exponential(float(one.nats.sum() / one.count.sum())) for one in each]
            row = {
                "sampler": each[0].sampler,
                "quantity": each[0].quantity,
                "values": values,
                "brackets": [bracket_table(one.bracket, one.count) for one in each if one.bracket],
                "nfe": statistics.fmean(one.nfe for one in each),
                "seconds": _median([one.seconds for one in each]),
            }
            if number:
                both = [(one, run[0]) for one, run in zip(each, runs, strict=True)]
                row |= paired_over([(one.nats, first.nats) for one, first in both], each[0].count)
                row["seconds_ratio"] = _median([one.seconds / first.seconds for one, first in both])
            rows.append(row)
        seeds = [run[0].run.seed for run in runs]
        on = list({json.dumps(run[0].on, sort_keys=True): run[0].on for run in runs}.values())
        arms.append({"arm": arm, "seeds": seeds, "sequences": len(runs[0][0].count), "on": on, "samplers": rows})
    return arms


def gap_tables(study: Study, priced: Mapping[str, Sequence[Sequence[Priced]]]) -> list[dict[str, Any]]:
    """Return a table per gap that compares every arm's NLLs, one per sampler or bound, with each of the baseline's.

    `priced` holds the results for each arm and seed. Two results are compared on common sequences, seed by seed.
    """
    theirs = [list(each) for each in zip(*priced.get(study.baseline, ()), strict=True)]
    rows = [(arm, list(each)) for arm, runs in priced.items() for each in zip(*runs, strict=True)]
    whats = rows[0][1][0].nats if rows else ()
    return [
        {
            "what": what,
            "rows": [
                _gap_row(arm, mine, [other for other in theirs if other[0] is not mine[0]], what) for arm, mine in rows
            ],
        }
        for what in whats
    ]


def nats_of_gaps(priced: Mapping[str, Sequence[Sequence[Priced]]]) -> Iterator[dict[str, Any]]:
    """Yield the nats per sequence of every NLL of a gap, in the format of `nats_of`."""
    for arm, runs in priced.items():
        for each in (each for run in runs for each in run):
            for what, nats in each.nats.items():
                about = {"part": "gaps", "arm": arm, "seed": each.run.seed, "by": each.by, "what": what}
                yield kept_nats(nats, each.count[what], **about)


def _gap_row(arm: str, mine: list[Priced], theirs: Sequence[list[Priced]], what: str) -> dict[str, Any]:
    values = [exponential(float(one.nats[what].sum() / one.count[what].sum())) for one in mine]
    against = []
    for other in theirs:
        by_seed = {one.run.seed: one for one in other}
        both = [(one, by_seed[one.run.seed]) for one in mine if one.run.seed in by_seed]
        if both:
            n = min(len(each.count[what]) for each in both[0])
            pairs = [(spread(one.nats[what], n), spread(another.nats[what], n)) for one, another in both]
            against.append({"by": other[0].by, **paired_over(pairs, spread(both[0][0].count[what], n))})
    return {
        "arm": arm,
        "by": mine[0].by,
        "quantity": mine[0].quantity,
        "seeds": [one.run.seed for one in mine],
        "sequences": len(mine[0].count[what]),
        "values": values,
        "brackets": [bracket_table(ends, one.count[what]) for one in mine if (ends := one.brackets.get(what))],
        "against": against,
    }


def bracket_table(ends: Bracket, count: torch.Tensor) -> dict[str, Any]:
    """Return the lower limit of the NLL (None if too uncertain), and the effective number of orders."""
    found = bracket_value(ends, count)
    return {"above": found and found.value, "effective_orders": float(ends.effective.mean())}


def paired_over(pairs: Sequence[tuple[Any, Any]], count: Any) -> dict[str, Any]:
    """Return the difference between pairs of nats, [n] each, one pair per seed, with its intervals."""
    means = [torch.stack(nats).mean(0) for nats in zip(*pairs, strict=True)]
    return difference([paired(a, b, count) for a, b in pairs], paired(means[0], means[1], count))


def nats_of(part: str, measured: ByArm) -> Iterator[dict[str, Any]]:
    """Yield the nats per sequence for every run and bound, from which all intervals can be recomputed."""
    for arm, runs in measured.items():
        for seed, run in runs.items():
            for bound, nats in run.nats.items():
                yield kept_nats(nats, run.count, part=part, arm=arm, seed=seed, bound=bound)


def nats_of_samplers(written: Mapping[str, Sequence[Sequence[Written]]]) -> Iterator[dict[str, Any]]:
    """Yield the nats per sequence for every run and sampler."""
    for arm, runs in written.items():
        for each in (each for run in runs for each in run):
            yield kept_nats(each.nats, each.count, part="samplers", arm=arm, seed=each.run.seed, by=each.sampler)


def kept_nats(nats: torch.Tensor, count: torch.Tensor, **about: Any) -> dict[str, Any]:
    """Return a line of NAME.nats.jsonl: `about`, the nats of each sequence, rounded to 1e-4, and its token count."""
    return about | {"nats": finite([round(value, 4) for value in nats.tolist()]), "tokens": count.tolist()}
