"""Confidence intervals: bootstrap over sequences, Student's t for means, and intervals over seeds and sequences.

The bootstrap estimates a ratio of sums, Σ nats / Σ tokens. It resamples sequences, because the tokens of one sequence
are not independent. The bootstrap intervals are percentile intervals (Efron & Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13) from order statistics, so the interval of −x is exactly minus the interval of x. There are
n sequences, R resamples and m columns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

RESAMPLES = 10_000
LEVEL = 0.95
# Numbers in a chunk of resamples: 32 MB of int64.
_CHUNK = 1 << 22


@attrs.frozen(kw_only=True)
class Interval:
    """An estimate and its confidence interval."""

    value: float  # the estimate on the original sequences
    low: float  # lower end of the interval
    high: float  # upper end

    @property
    def width(self) -> float:
        """The width of the interval."""
        return self.high - self.low

    def to_table(self) -> dict[str, float]:
        """Return a difference in nats per token as a JSON object, with the change of the perplexity in percent."""
        nats = {"nats_per_token": self.value, "low": self.low, "high": self.high}
        ends = {"percent": self.value, "percent_low": self.low, "percent_high": self.high}
        return nats | {name: percent(value) for name, value in ends.items()}


def percent(nats_per_token: float) -> float:
    """Return the change of a perplexity in percent for a difference in nats per token."""
    return 100 * math.expm1(nats_per_token) if nats_per_token < 700 else math.inf


def resampled(values: Tensor, *, purpose: str, seed: int, resamples: int = RESAMPLES) -> Tensor:
    """Return the column sums of values [n, m] over sequences sampled with replacement, float64 [R, m].

    A resample is a function of (seed, purpose, its number), so it is the same for every column and on every machine,
    and independent for different purposes.
    """
    import torch

    values = values.double()
    return torch.cat([times.double() @ values for times in _times(len(values), purpose, seed, resamples)])


def _times(n: int, purpose: str, seed: int, resamples: int) -> Iterator[Tensor]:
    """Yield how often each of n sequences occurs in each of r resamples, int64 [r, n], for R resamples in total."""
    import torch

    from atat_zoo.diffusion.randomness import fold, mix_int, stream, to_unit

    key, columns = torch.tensor(mix_int(stream(seed, purpose))), torch.arange(n)
    rows = max(1, _CHUNK // n)
    for first in range(0, resamples, rows):
        number = torch.arange(first, min(first + rows, resamples))
        units = to_unit(fold(fold(key, number)[:, None], columns), torch.float64)
        # u < 1, but the product may round up to n.
        chosen = (units * n).long().clamp(max=n - 1)
        times = torch.bincount((chosen + torch.arange(len(number))[:, None] * n).flatten(), minlength=len(number) * n)
        yield times.view(len(number), n)


def interval(value: float, samples: Tensor) -> Interval:
    """Return the percentile interval of resampled estimates [R], from the k-th smallest to the k-th largest."""
    ordered = samples.sort().values
    k = max(1, math.floor((1 - LEVEL) / 2 * (len(ordered) + 1)))
    return Interval(value=value, low=float(ordered[k - 1]), high=float(ordered[-k]))


def paired(a: Tensor, b: Tensor, count: Tensor, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return Σ(a − b) / Σ count with its paired interval; a and b are nats [n] of the same sequences and masks."""
    difference, n = a.double() - b.double(), count.double()
    return interval(float(difference.sum() / n.sum()), _means(difference, n, "bootstrap", seed, resamples))


def unpaired(a: Tensor, b: Tensor, count: Tensor, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return Σ(a − b) / Σ count with the interval that it would have if a and b came from different sequences."""
    a, b, n = a.double(), b.double(), count.double()
    apart = _means(a, n, "bootstrap a", seed, resamples) - _means(b, n, "bootstrap b", seed, resamples)
    return interval(float((a - b).sum() / n.sum()), apart)


def _means(nats: Tensor, count: Tensor, purpose: str, seed: int, resamples: int) -> Tensor:
    """Return the nats per token of each resample, [R]; for a single sequence, they are infinite."""
    import torch

    if len(nats) == 1:  # one sequence says nothing about the spread over sequences
        return torch.tensor([-torch.inf, torch.inf]).double().repeat(resamples // 2)
    sums, tokens = resampled(torch.stack([nats, count], 1), purpose=purpose, seed=seed, resamples=resamples).unbind(1)
    return sums / tokens


def spearman_interval(a: Tensor, b: Tensor, sequence: Tensor, resamples: int = 200) -> tuple[float, float] | None:
    """Return the interval of Spearman's ρ of two vectors over the tokens of sequences; all arguments are [N].

    `sequence` is the number of each token's sequence, int64, ascending. The ranks are computed again for each resample.
    Returns None for a single sequence, or if ρ is undefined in a resample.
    """
    import torch

    from atat_zoo.diffusion.statistics import spearman

    tokens = sequence.unique_consecutive(return_counts=True)[1]
    if len(tokens) < 2:
        return None
    times = (each for some in _times(len(tokens), "spearman", 0, resamples) for each in some)
    chosen = (torch.repeat_interleave(each.repeat_interleave(tokens)) for each in times)
    rhos = torch.tensor([spearman(a[here], b[here]) for here in chosen])
    found = interval(float("nan"), rhos)
    return None if rhos.isnan().any() else (found.low, found.high)


def of_mean(values: Sequence[float] | NDArray[Any]) -> Interval | None:
    """Return the mean with its t-interval, mean ± t(n − 1) s / √n, or None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, variance = _moments(values)
    return _student(mean, variance, len(values) - 1)


def of_seeds_and_sequences(each: Sequence[float], sequences: Interval) -> Interval | None:
    """Return the mean over seeds, with an interval over both seeds and sequences, as in all published results.

    Returns None if there is only one seed or all seeds have the same value. The margins of the t-interval over seeds
    and of the interval over sequences are added in quadrature (W. G. Howe, Journal of the American Statistical
    Association 69, 1974). Both margins include the interaction of seed and sequence, so the interval is slightly too
    wide. A t-interval for the whole error with the degrees of freedom of the seeds would be too wide by a factor of two
    if sequences dominate the error, and with few seeds, Satterthwaite's degrees of freedom and a hierarchical bootstrap
    have too low a coverage.

    Args:
        each: The value of each seed, on the same sequences.
        sequences: The interval over sequences (or items) of the mean over seeds.
    """
    if len({round(value, 12) for value in each}) < 2:  # differences by rounding are not counted as spread
        return None
    mean, variance = _moments(each)
    by_seed = _student(mean, variance, len(each) - 1)
    low, high = (
        math.hypot(of_seeds - mean, of_sequences - sequences.value)
        for of_seeds, of_sequences in ((by_seed.low, sequences.low), (by_seed.high, sequences.high))
    )
    return Interval(value=mean, low=mean - low, high=mean + high)


def of_difference(a: NDArray[Any], b: NDArray[Any]) -> Interval | None:
    """Return mean(a) − mean(b) of independent values, with Welch's t-interval for unequal variances.

    B. L. Welch, Biometrika 34 (1947). Returns None if a or b has fewer than two values.
    """
    if min(len(a), len(b)) < 2:
        return None
    (mean_a, of_a), (mean_b, of_b) = _moments(a), _moments(b)
    parts = of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)
    return _student(mean_a - mean_b, of_a + of_b, (of_a + of_b) ** 2 / parts if parts else 1)


def _moments(values: Sequence[float] | NDArray[Any]) -> tuple[float, float]:
    """Return the mean and the estimated variance of the mean."""
    import numpy as np

    x = np.asarray(values, np.float64)
    with np.errstate(invalid="ignore"):  # of values that are not finite
        return float(x.mean()), float(x.var(ddof=1)) / len(x)


def _student(mean: float, variance: float, freedom: float) -> Interval:
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance)
    return Interval(value=mean, low=mean - half, high=mean + half)
