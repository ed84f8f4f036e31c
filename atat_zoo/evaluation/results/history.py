"""The training history of a run: steps, seconds, speed, memory, and when it reached a perplexity."""

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import attrs

from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.evaluation import LIKELIHOOD, method_of
from atat_zoo.evaluation.results.format import size
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY
from atat_zoo.experiment import Experiment
from atat_zoo.experiment.runs import RunFolder


@attrs.frozen(kw_only=True)
class History:
    """The training history of a run."""

    clock: tuple[tuple[int, float], ...]  # (step, seconds of all optimizer steps so far), beginning with (0, 0)
    tokens_per_second: float | None  # median over the lines of metrics.jsonl, or None
    peak_memory: int | None  # bytes, maximum over ranks, or None if not recorded
    evaluated: tuple[tuple[int, float], ...]  # (step, perplexity) of the evaluations during and after training
    computed: dict[str, Any]  # device, precision and ranks when training began
    evaluated_on: str = ""  # sequences and draws of these evaluations

    @property
    def final(self) -> float | None:
        """The perplexity of the last recorded evaluation, or None."""
        return self.evaluated[-1][1] if self.evaluated else None

    @property
    def seconds(self) -> float | None:
        """The total time of all optimizer steps in seconds, or None if it was not recorded."""
        return self.clock[-1][1] if len(self.clock) > 1 else None

    def reached(self, value: float) -> int | None:
        """Return the first evaluated step whose perplexity is at most `value`, or None."""
        return next((step for step, each in self.evaluated if each <= value), None)

    def seconds_at(self, step: int) -> float | None:
        """Return the time of the steps up to `step` in seconds (interpolated), or None after the last recorded step."""
        for (before, start), (after, end) in pairwise(self.clock):
            if before <= step <= after:
                return start + (end - start) * (step - before) / (after - before)
        return None


def history(folder: RunFolder, experiment: Experiment, until: float = math.inf) -> History:
    """Return the history of a run up to and including the step `until`."""
    lines = [line for line in folder.read_metrics() if line["step"] <= until]
    peaks = [int(line["peak_memory"]) for line in lines if "peak_memory" in line]
    speeds = [float(line["tokens_per_second"]) for line in lines if "tokens_per_second" in line]
    spec = experiment.evaluation
    method = method_of(experiment, spec.bound)
    draws = 0 if method == LIKELIHOOD else spec.mask_samples
    own = {"corpus": "", "split": spec.split, "draws": draws, "seed": experiment.seed, "method": method}
    count, evaluated = _evaluated(folder, own, spec.sequences, until)
    return History(
        clock=tuple(_clock(lines)),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        peak_memory=max(peaks, default=None),
        evaluated=tuple(sorted(evaluated.items())),
        computed=folder.began_with(),
        evaluated_on=size(count, draws) if evaluated else "",
    )


def _clock(lines: list[dict[str, Any]]) -> Iterator[tuple[int, float]]:
    """Yield each step with the cumulative time of the steps, which excludes evaluations and checkpoints."""
    seconds, tokens = 0.0, 0
    yield 0, 0.0
    for line in lines:
        speed = float(line.get("tokens_per_second") or 0)
        if not speed or "tokens" not in line:
            continue
        seconds += (int(line["tokens"]) - tokens) / speed
        tokens = int(line["tokens"])
        yield int(line["step"]), seconds


def _evaluated(folder: RunFolder, own: dict[str, Any], most: int, until: float) -> tuple[int, dict[int, float]]:
    """Return the number of sequences in the evaluations during training, and a dict from step to perplexity.

    If evaluations have different sizes, the size with the most steps is used, and among equals the largest. Later
    evaluations of the final model with settings that differ from `own`, or with a different number of sequences, are
    ignored.
    """
    curves: dict[int, dict[int, float]] = {}
    for table in store.tables(folder, warn=False):
        step, count, value = table["step"], table.get("sequences"), table.get(PERPLEXITY)
        # A key is missing if the version that wrote the file did not have this option.
        if not isinstance(value, int | float) or any(table.get(key, own[key]) != own[key] for key in own):
            continue
        if isinstance(count, int) and count <= (most or count) and step <= until:
            curves.setdefault(count, {})[step] = float(value)
    return max(curves.items(), key=lambda curve: (len(curve[1]), curve[0]), default=(0, {}))
