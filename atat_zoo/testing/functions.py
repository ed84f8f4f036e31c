"""Parts that are functions of a tensor: noise schedules, mask rates and uncertainty metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

from atat_zoo.registry import Zoo
from atat_zoo.testing.batches import DTYPES, called, close, for_examples, holds, is_tensor, rows
from atat_zoo.testing.steps import check_adaptive, variants

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import NoiseLevels
    from atat_zoo.testing.batches import Rows

_POINTS, _INTERVALS = 2**16, 16
# Rates of an interval are compared where this share of the rows is in it: elsewhere there are too few points.
_ENOUGH = 0.005


def check_noise(noise: Any, examples: int = 50) -> None:
    """Check the contract of a schedule: α falls in [0, 1], the weight is −α'/(1 − α), time_at inverts the rate."""

    @for_examples(examples, seed=st.integers(0, 2**32 - 1))
    def holds_shape(seed: int) -> None:
        t = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        t = torch.cat([t, torch.tensor([0.0, 1e-4, 1.0])]).sort().values
        for dtype in (torch.float64, torch.float32):
            alpha = noise.alpha(t.to(dtype))
            is_tensor(alpha, "α", dtype, t.shape)
            holds((alpha >= 0) & (alpha <= 1), "α is in [0, 1]")
            holds(alpha.diff() <= 4 * torch.finfo(dtype).eps, "α does not rise, beyond the rounding of its precision")
        inner = t[t > 0].requires_grad_()
        alpha = noise.alpha(inner)
        (slope,) = torch.autograd.grad(alpha.sum(), inner)
        # Where the rate is tiny, 1 − α is not precise enough for a comparison.
        precise = (1 - alpha > 1e-6).detach()
        weight = noise.weight(inner).detach()[precise]
        wanted = (-slope / (1 - alpha)).detach()[precise]
        # Relative to 1 + the weight: it grows without bound towards t = 0, and may vanish at t = 1.
        close((weight - wanted) / (1 + wanted), torch.zeros_like(wanted), 1e-6, "the weight is −α'/(1 − α)")

    @for_examples(examples, share=st.lists(st.floats(0, 1), min_size=1, max_size=20))
    def holds_inverse(share: list[float]) -> None:
        ends = 1 - noise.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
        for dtype in (torch.float64, torch.float32):
            rate = (ends[0] + torch.tensor(share, dtype=torch.float64) * (ends[1] - ends[0])).to(dtype)
            t = noise.time_at(rate)
            is_tensor(t, "the time", dtype, rate.shape)
            holds((t >= 0) & (t <= 1), "the time is in [0, 1]")
            close(1 - noise.alpha(t), rate, 1e-6, "at time_at(rate) the mask rate is the rate")
        outside = noise.time_at(torch.tensor([0.0, 1.0], dtype=torch.float64))
        reached = 1 - noise.alpha(outside)
        close(reached, ends, 1e-6, "rates outside the range go to its ends")
        assert noise.complete == (ends.tolist() == [0.0, 1.0]), "`complete` says whether α goes from 1 to 0"


def check_uncertainty(metric: Any, examples: int = 50) -> None:
    """Check the contract of a metric: 0 for one token, 1 if uniform, invariant to permutations and to a constant."""
    for size in (2, 7, 50_000):
        close(metric(torch.zeros(2, size)), torch.ones(2), 1e-5, f"all {size} tokens alike: the uncertainty is 1")
        sure = torch.zeros(2, size).index_fill(-1, torch.tensor([1]), 1e4)
        close(metric(sure), torch.zeros(2), 1e-6, f"one of {size} tokens sure: the uncertainty is 0")
        only = torch.full((2, size), -torch.inf).index_fill(-1, torch.tensor([1]), 0.0)
        close(metric(only), torch.zeros(2), 0, f"{size - 1} of {size} tokens excluded: the uncertainty is 0")

    @for_examples(
        examples,
        seed=st.integers(0, 2**32 - 1),
        size=st.sampled_from([1, 2, 3, 50, 1000]),
        spread=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
        dtype=st.sampled_from(sorted(DTYPES)),
    )
    def holds_invariance(seed: int, size: int, spread: float, dtype: str) -> None:
        draw = torch.Generator().manual_seed(seed)
        logits = (torch.randn(3, 4, size, generator=draw) * spread).to(DTYPES[dtype])
        value = called(metric, {"logits": logits})
        is_tensor(value, "an uncertainty", torch.float32, (3, 4))
        holds((value >= 0) & (value <= 1), "an uncertainty is in [0, 1]")
        if size == 1:
            holds(value == 0, "a single token leaves nothing open")
        order = torch.randperm(size, generator=draw)
        close(metric(logits[..., order]), value, 1e-5, "permuting the vocabulary changes nothing")
        # In float64, where the sum is accurate; in bfloat16 rounding would change the logits.
        shifted = metric(logits.double() + 7.25)
        close(shifted, metric(logits.double()), 1e-6, "adding a constant changes nothing")
        hidden = torch.full((3, 4, 5), -torch.inf, dtype=logits.dtype)
        close(metric(torch.cat([hidden, logits], -1)), value, 1e-5, "logits of −∞ do not count in V")


def check_rates(rates: Any, examples: int = 20) -> None:
    """Check the contract of rates: a function of u with the noise's times, and weights of the density that is drawn.

    The last is tested by what it is for: with its weight, the mean over the draws is the one over uniform rates.
    """
    assert isinstance(getattr(rates, "finite_variance", None), bool), "`finite_variance` states whether ∫ 1/f is finite"

    @for_examples(
        examples,
        drawn=rows(),
        progress=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
        schedule=st.sampled_from(["linear", "cosine", "polynomial"]),
    )
    def holds_law(drawn: Rows, progress: float, schedule: str) -> None:
        noise = Zoo.load().spec("noise", schedule)
        u = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
        for ready in variants(rates, drawn):
            levels = _levels(ready, u, noise, progress)
            _holds_shapes(ready, levels, u, noise, progress)
            _holds_weights(levels, rates.finite_variance)

    # In every part of (0, 1], so that any change of the state is seen.
    u = (torch.arange(64) + 0.5) / 64
    linear = Zoo.load().spec("noise", "linear")
    check_adaptive(rates, lambda ready, _: _levels(ready, u, linear, 0.5).rate, examples)


def _levels(ready: Any, u: Tensor, noise: Any, progress: float) -> NoiseLevels:
    levels: NoiseLevels = called(ready.levels, {"u": u, "noise": noise, "progress": progress})
    return levels


def _holds_shapes(ready: Any, levels: NoiseLevels, u: Tensor, noise: Any, progress: float) -> None:
    for name in ("t", "rate", "weight"):
        is_tensor(getattr(levels, name), name, torch.float32, u.shape)
    holds((levels.rate >= 0) & (levels.rate <= 1), "a rate is in [0, 1]")
    holds((levels.t >= 0) & (levels.t <= 1), "a time is in [0, 1]")
    holds((levels.weight > 0) & levels.weight.isfinite(), "weights are positive and finite")
    close(1 - noise.alpha(levels.t), levels.rate, 1e-6, "at its time the noise has the rate")
    some = slice(5, 4101)
    by_block = _levels(ready, u[some].view(-1, 4), noise, progress)
    for name in ("t", "rate", "weight"):
        promise = f"{name} is a function of u, row by row and block by block"
        close(getattr(by_block, name).flatten(), getattr(levels, name)[some], 0, promise)
    ends = _levels(ready, torch.tensor([2.0**-53, 1.0]), noise, progress)
    holds((ends.rate >= 0) & (ends.rate <= 1), "a rate is in [0, 1], also of the smallest and the largest u")


def _holds_weights(levels: NoiseLevels, finite_variance: bool) -> None:
    """Check that the mean of r·weight over the draws in an interval of rates is its length, as 1/f has it."""
    rate = levels.rate.double()
    place = (rate * _INTERVALS).ceil().long().sub(1).clamp(0, _INTERVALS - 1)
    share = torch.bincount(place, minlength=_INTERVALS) / _POINTS
    length = torch.zeros(_INTERVALS, dtype=torch.float64).index_add(0, place, rate * levels.weight.double()) / _POINTS
    enough = share >= _ENOUGH
    promise = "weights are 1/(r·f(r)), so that rates count as if they were uniform"
    close(length[enough] * _INTERVALS, torch.ones(int(enough.sum())), 0.02, promise)
    if finite_variance:
        close(length.sum(), torch.ones(()), 0.02, f"with finite variance every rate occurs; {promise}")
