"""The loss of a masked token as a function of the mask rate, and the decoding schedule that is optimal for it.

Let f(k) be the mean cross-entropy of a masked token when k of n tokens, chosen uniformly at random, are masked. In a
random order, a decoding step from k to k' masked tokens has an expected NLL of (k − k')·f(k), and one token at a time
has Σ_{k' < i ≤ k} f(i). A schedule of S steps is therefore a path from n to 0 with S edges of these costs (Chen et al.,
arXiv:2511.04647), and for an exact denoiser the difference is the KL divergence from the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

_BINS = 64  # of the mask rate


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


@attrs.frozen(kw_only=True)
class LossByMaskRate:
    """f at increasing mask rates, linear between them and constant beyond, and what it was measured on."""

    mask_rates: tuple[float, ...] = attrs.field(converter=_numbers)  # increasing, in [0, 1]
    nats: tuple[float, ...] = attrs.field(converter=_numbers)  # mean cross-entropy of a masked token
    step: int = 0  # optimizer steps of the weights
    measured_on: Mapping[str, Any] = attrs.field(factory=dict, eq=False)  # split, sequences, masks, seed

    def __attrs_post_init__(self) -> None:
        rates, nats = np.array(self.mask_rates), np.array(self.nats)
        if not (len(rates) == len(nats) > 0 and np.isfinite([*rates, *nats]).all() and (np.diff(rates) > 0).all()):
            raise ValueError("a loss by mask rate needs increasing mask rates and as many finite losses")

    @classmethod
    def fit(cls, masked: Tensor, loss: Tensor, length: int, **facts: Any) -> LossByMaskRate | None:
        """Return the curve of masks with `masked` tokens, whose losses sum to `loss` nats, both [...], of L tokens.

        The losses are averaged over bins of the mask rate, and a smoothing spline is fitted to five or more bins, with
        generalised cross-validation, because a schedule would exploit the noise. Without a finite loss, return None.
        """
        from scipy.interpolate import make_smoothing_spline

        counted = (masked > 0) & loss.isfinite()
        k, summed = (each[counted].double() for each in (masked, loss))
        if not len(k):
            return None
        where = ((k / length * _BINS).ceil().long() - 1).clamp(0, _BINS - 1)
        tokens, squares, total = (
            torch.zeros(_BINS, dtype=torch.float64).index_add(0, where, each) for each in (k, k * k, summed)
        )
        full = tokens > 0
        weights, rates, nats = (each[full].numpy() for each in (tokens, squares / tokens / length, total / tokens))
        if len(rates) >= 5:
            spline = make_smoothing_spline(rates, nats, w=weights / weights.sum())
            rates = np.arange(_BINS + 1) / _BINS
            nats = spline(rates)
        return cls(mask_rates=rates, nats=nats, **facts)

    def losses(self, n: int, length: int, closed: int = 0) -> Tensor:
        """Return f(k) for k = 0 … n further masks in a row of L tokens with `closed` other masks, float64 [n + 1]."""
        rates = (np.arange(n + 1) + closed) / length
        return torch.from_numpy(np.interp(rates, self.mask_rates, self.nats))

    def next_masked(self, n: int, length: int, closed: int, steps: int) -> Tensor:
        """Return `optimal_schedule` of `losses`; repeated calls compute it once."""
        return _schedule(self, n, length, closed, steps)


@lru_cache(maxsize=64)
def _schedule(curve: LossByMaskRate, n: int, length: int, closed: int, steps: int) -> Tensor:
    return optimal_schedule(curve.losses(n, length, closed), steps)


def optimal_schedule(losses: Tensor, steps: int) -> Tensor:
    """Return how many of k masked tokens are left masked by the best first of s steps, int64 [min(S, n) + 1, n + 1].

    Entry [s, k], for 1 ≤ s ≤ k, minimises the expected NLL of unmasking k tokens in exactly s steps; entries [0, k] and
    [s, k] with s > k are 0. `losses` is f(0) … f(n), float64 [n + 1]. The time is O(n² S), by dynamic programming.
    """
    n, most = len(losses) - 1, min(steps, len(losses) - 1)
    cost = torch.full((most + 1, n + 1), torch.inf, dtype=torch.float64)
    cost[0, 0] = 0
    following = torch.zeros(cost.shape, dtype=torch.int64)
    for k in range(1, n + 1):
        # From k to each k' < k in one step, and on in s − 1 steps.
        unmasked = torch.arange(k, 0, -1, dtype=torch.float64)
        best = (cost[:-1, :k] + unmasked * losses[k]).min(dim=1)
        cost[1:, k] = best.values
        following[1:, k] = torch.where(best.values.isfinite(), best.indices, 0)
    return following
