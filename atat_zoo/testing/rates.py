"""Checks of rates: which mask rates a training draws, and what a row of each weighs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

from atat_zoo.registry import Zoo
from atat_zoo.testing.batches import close, for_examples, holds, rows
from atat_zoo.testing.steps import check_adaptive, variants

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import Levels
    from atat_zoo.testing.batches import Rows

_POINTS, _INTERVALS = 2**16, 16
# Rates of an interval are compared where this share of the rows is in it: elsewhere there are too few points.
_ENOUGH = 0.005


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


def _levels(ready: Any, u: Tensor, noise: Any, progress: float) -> Levels:
    levels: Levels = ready.levels(u, noise, progress)
    return levels


def _holds_shapes(ready: Any, levels: Levels, u: Tensor, noise: Any, progress: float) -> None:
    given, state = u.clone(), torch.get_rng_state()
    for name in ("t", "rate", "weight"):
        value = getattr(levels, name)
        assert value.dtype == torch.float32, f"{name} is float32, not {value.dtype}"
        assert value.shape == u.shape, f"{name} has the shape of u"
    holds((levels.rate >= 0) & (levels.rate <= 1), "a rate is in [0, 1]")
    holds((levels.t >= 0) & (levels.t <= 1), "a time is in [0, 1]")
    holds((levels.weight > 0) & levels.weight.isfinite(), "weights are positive and finite")
    close(1 - noise.alpha(levels.t), levels.rate, 1e-6, "at its time the noise has the rate")
    some = slice(5, 4101)
    by_block = _levels(ready, u[some].view(-1, 4), noise, progress)
    for name in ("t", "rate", "weight"):
        part = getattr(by_block, name)
        close(
            part.flatten(), getattr(levels, name)[some], 0, f"{name} is a function of u, row by row and block by block"
        )
    ends = _levels(ready, torch.tensor([2.0**-53, 1.0]), noise, progress)
    holds((ends.rate >= 0) & (ends.rate <= 1), "a rate is in [0, 1], also of the smallest and the largest u")
    holds(u == given, "u is left as it was")
    assert torch.equal(torch.get_rng_state(), state), "no random number is drawn"


def _holds_weights(levels: Levels, finite_variance: bool) -> None:
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
