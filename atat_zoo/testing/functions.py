"""Parts that are functions of a tensor: noise schedules and uncertainty metrics."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from atat_zoo.testing.batches import DTYPES, close, for_examples, holds


def check_noise(noise: Any, examples: int = 50) -> None:
    """Check the contract of a schedule: α falls in [0, 1], the weight is −α'/(1 − α), time_at inverts the rate."""

    @for_examples(examples, seed=st.integers(0, 2**32 - 1))
    def holds_shape(seed: int) -> None:
        t = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        t = torch.cat([t, torch.tensor([0.0, 1e-4, 1.0])]).sort().values
        for dtype in (torch.float64, torch.float32):
            alpha = noise.alpha(t.to(dtype))
            assert alpha.dtype == dtype, f"α has the precision of t, {dtype}, not {alpha.dtype}"
            assert alpha.shape == t.shape, "α has the shape of t"
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
            assert t.dtype == dtype, f"the time has the precision of the rate, {dtype}, not {t.dtype}"
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
        given_logits = logits.clone()
        value = metric(logits)
        assert value.dtype == torch.float32, f"an uncertainty is float32, not {value.dtype}"
        assert value.shape == (3, 4), "an uncertainty has the shape of the logits without V"
        holds((value >= 0) & (value <= 1), "an uncertainty is in [0, 1]")
        holds(logits == given_logits, "logits are left as they were")
        if size == 1:
            holds(value == 0, "a single token leaves nothing open")
        order = torch.randperm(size, generator=draw)
        close(metric(logits[..., order]), value, 1e-5, "permuting the vocabulary changes nothing")
        # In float64, where the sum is accurate; in bfloat16 rounding would change the logits.
        shifted = metric(logits.double() + 7.25)
        close(shifted, metric(logits.double()), 1e-6, "adding a constant changes nothing")
        hidden = torch.full((3, 4, 5), -torch.inf, dtype=logits.dtype)
        close(metric(torch.cat([hidden, logits], -1)), value, 1e-5, "logits of −∞ do not count in V")
