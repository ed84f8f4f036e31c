"""Checks of the components of a training step, from the noise schedule to the importance estimator."""

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from atat_zoo.diffusion.calibration import tilt
from atat_zoo.diffusion.contracts import NoisedBatch, NoiseLevels, StatefulComponent
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.modeling.curricula import ExponentialWeighting
from atat_zoo.registry import Zoo
from atat_zoo.testing.batches import (
    DTYPES,
    VOCABULARY,
    Rows,
    built,
    called,
    close,
    for_examples,
    holds,
    is_tensor,
    masked_step,
    rows,
    taught,
)

_DRAWN = 20_000
_PROGRESS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
_POINTS, _INTERVALS = 2**16, 16
# The weights in an interval of rates are checked only if it contains this share of the points.
_ENOUGH = 0.005


def check_noise(noise: Any, examples: int = 50) -> None:
    """Check the contract of a noise schedule: α falls within [0, 1], weight is −α'/(1 − α), time_at inverts 1 − α."""

    @for_examples(examples, seed=st.integers(0, 2**32 - 1))
    def holds_shape(seed: int) -> None:
        t = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        t = torch.cat([t, torch.tensor([0.0, 1e-4, 1.0])]).sort().values
        for dtype in (torch.float64, torch.float32):
            alpha = noise.alpha(t.to(dtype))
            is_tensor(alpha, "α", dtype, t.shape)
            holds((alpha >= 0) & (alpha <= 1), "α must be in [0, 1]")
            holds(alpha.diff() <= 4 * torch.finfo(dtype).eps, "α must not rise by more than rounding error")
        # Exclude 1, where α may be clamped: at its bound, a clamp has slope 1 in torch 2.7, but 0 in 2.15.
        inner = t[t > 0].clamp(max=1 - 1e-9).requires_grad_()
        alpha = noise.alpha(inner)
        (slope,) = torch.autograd.grad(alpha.sum(), inner)
        # If the rate is tiny, 1 − α is not precise enough for a comparison.
        precise = (1 - alpha > 1e-6).detach()
        weight = noise.weight(inner).detach()[precise]
        wanted = (-slope / (1 - alpha)).detach()[precise]
        # Relative to 1 + the weight, which grows without bound towards t = 0 and may vanish at t = 1.
        close((weight - wanted) / (1 + wanted), torch.zeros_like(wanted), 1e-6, "the weight must be −α'/(1 − α)")

    @for_examples(examples, share=st.lists(st.floats(0, 1), min_size=1, max_size=20))
    def holds_inverse(share: list[float]) -> None:
        ends = 1 - noise.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
        for dtype in (torch.float64, torch.float32):
            rate = (ends[0] + torch.tensor(share, dtype=torch.float64) * (ends[1] - ends[0])).to(dtype)
            t = noise.time_at(rate)
            is_tensor(t, "the time", dtype, rate.shape)
            holds((t >= 0) & (t <= 1), "the time must be in [0, 1]")
            close(1 - noise.alpha(t), rate, 1e-6, "1 − α(time_at(rate)) must be the rate")
        outside = torch.tensor([0.0, 1.0], dtype=torch.float64)
        close(1 - noise.alpha(noise.time_at(outside)), ends, 1e-6, "time_at() must clamp rates outside the range")
        assert noise.complete == (ends.tolist() == [0.0, 1.0]), (
            "`complete` must be True if α falls from 1 to 0, and False otherwise"
        )


def check_uncertainty(metric: Any, examples: int = 50) -> None:
    """Check the contract of an uncertainty: 0 if certain, 1 if uniform, the same for permuted or shifted logits."""
    for size in (2, 7, 50_000):
        close(
            metric(torch.zeros(2, size)),
            torch.ones(2),
            1e-5,
            f"with {size} equally likely tokens, the uncertainty must be 1",
        )
        sure = torch.zeros(2, size).index_fill(-1, torch.tensor([1]), 1e4)
        close(metric(sure), torch.zeros(2), 1e-6, f"if one of {size} tokens is certain, the uncertainty must be 0")
        only = torch.full((2, size), -torch.inf).index_fill(-1, torch.tensor([1]), 0.0)
        close(
            metric(only), torch.zeros(2), 0, f"if {size - 1} of {size} tokens are excluded, the uncertainty must be 0"
        )

    spreads, dtypes = st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]), st.sampled_from(sorted(DTYPES))
    sizes = st.sampled_from([1, 2, 3, 50, 1000])

    @for_examples(examples, seed=st.integers(0, 2**32 - 1), size=sizes, spread=spreads, dtype=dtypes)
    def holds_invariance(seed: int, size: int, spread: float, dtype: str) -> None:
        draw = torch.Generator().manual_seed(seed)
        logits = (torch.randn(3, 4, size, generator=draw) * spread).to(DTYPES[dtype])
        value = called(metric, {"logits": logits})
        is_tensor(value, "an uncertainty", torch.float32, (3, 4))
        holds((value >= 0) & (value <= 1), "an uncertainty must be in [0, 1]")
        if size == 1:
            holds(value == 0, "with a single token, the uncertainty must be 0")
        order = torch.randperm(size, generator=draw)
        close(metric(logits[..., order]), value, 1e-5, "permuting the vocabulary must not change the uncertainty")
        # In float64, the sum is accurate; in bfloat16, rounding would change the logits.
        shifted = metric(logits.double() + 7.25)
        close(shifted, metric(logits.double()), 1e-6, "adding a constant to the logits must not change the uncertainty")
        hidden = torch.full((3, 4, 5), -torch.inf, dtype=logits.dtype)
        close(metric(torch.cat([hidden, logits], -1)), value, 1e-5, "logits of −∞ must not change the uncertainty")


def check_mask_rates(rates: Any, examples: int = 20) -> None:
    """Check the contract of mask rates: functions of a uniform number u, with matching times and importance weights.

    The times must match the noise schedule, and the weights must make the mean over sampled rates equal to the mean
    over uniform rates.
    """
    assert isinstance(getattr(rates, "finite_variance", None), bool), (
        "`finite_variance` must be True if ∫ 1/f is finite for the density f of the rates, and False otherwise"
    )

    schedules = st.sampled_from(["linear", "cosine", "polynomial"])

    @for_examples(examples, drawn=rows(), progress=_PROGRESS, schedule=schedules)
    def holds_law(drawn: Rows, progress: float, schedule: str) -> None:
        noise = Zoo.load().spec("noise", schedule)
        u = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
        for ready in variants(rates, drawn):
            levels = _levels(ready, u, noise, progress)
            _holds_shapes(ready, levels, u, noise, progress)
            _holds_weights(levels, rates.finite_variance)

    # In every part of (0, 1], so that any change in the state becomes visible.
    u = (torch.arange(64) + 0.5) / 64
    linear = Zoo.load().spec("noise", "linear")
    check_adaptive(rates, lambda ready, _: _levels(ready, u, linear, 0.5).rate, examples)


def _levels(ready: Any, u: Tensor, noise: Any, progress: float) -> NoiseLevels:
    return called(ready.levels, {"u": u, "noise": noise, "progress": progress})


def _holds_shapes(ready: Any, levels: NoiseLevels, u: Tensor, noise: Any, progress: float) -> None:
    for name in ("t", "rate", "weight"):
        is_tensor(getattr(levels, name), name, torch.float32, u.shape)
    holds((levels.rate >= 0) & (levels.rate <= 1), "a rate must be in [0, 1]")
    holds((levels.t >= 0) & (levels.t <= 1), "a time must be in [0, 1]")
    holds((levels.weight > 0) & levels.weight.isfinite(), "weights must be positive and finite")
    close(1 - noise.alpha(levels.t), levels.rate, 1e-6, "1 − α(t) must be the rate")
    some = slice(5, 4101)
    by_block = _levels(ready, u[some].view(-1, 4), noise, progress)
    for name in ("t", "rate", "weight"):
        promise = f"{name} must be a function of u, computed elementwise"
        close(getattr(by_block, name).flatten(), getattr(levels, name)[some], 0, promise)
    ends = _levels(ready, torch.tensor([2.0**-53, 1.0]), noise, progress)
    holds((ends.rate >= 0) & (ends.rate <= 1), "a rate must be in [0, 1], even for the smallest and the largest u")


def _holds_weights(levels: NoiseLevels, finite_variance: bool) -> None:
    """Check that the mean of r·weight over the sampled rates in an interval is the length of the interval."""
    rate = levels.rate.double()
    place = (rate * _INTERVALS).ceil().long().sub(1).clamp(0, _INTERVALS - 1)
    share = torch.bincount(place, minlength=_INTERVALS) / _POINTS
    length = torch.zeros(_INTERVALS, dtype=torch.float64).index_add(0, place, rate * levels.weight.double()) / _POINTS
    enough = share >= _ENOUGH
    promise = "weights must be 1/(r·f(r)) for rates r with density f, which makes the weighted rates uniform"
    close(length[enough] * _INTERVALS, torch.ones(int(enough.sum())), 0.02, promise)
    if finite_variance:
        close(length.sum(), torch.ones(()), 0.02, f"with finite variance, every rate must occur; {promise}")


def check_mask_drawing(drawing: Any, examples: int = 50) -> None:
    """Check the contract of mask drawing: masks with marginals p (exact at 0 and 1) from only p and the row's key."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_keys(drawn: Rows, seed: int) -> None:
        p = drawn.importance.float() * drawn.maskable
        keys = sequence_keys(seed, "mask", torch.arange(p.shape[0]))
        mask = called(drawing, {"p": p, "keys": keys})
        is_tensor(mask, "a mask", torch.bool, p.shape)
        holds(~mask[p == 0], "a token with p = 0 must never be masked")
        holds(mask[p == 1], "a token with p = 1 must always be masked")
        holds(drawing(p[2:3], keys[2:3]) == mask[2:3], "a row must not depend on the rest of its batch")

    @for_examples(max(1, examples // 10), drawn=rows(), seed=st.integers(0, 2**31))
    def holds_marginals(drawn: Rows, seed: int) -> None:
        p = drawn.uniform(6)
        keys = sequence_keys(seed, "mask", torch.arange(_DRAWN))
        share = drawing(p.expand(_DRAWN, 6).contiguous(), keys).double().mean(0)
        error = (share - p).abs() / (p * (1 - p) / _DRAWN).sqrt().clamp(min=1e-9)
        holds(error <= 6, "a token must be masked with probability p (within 6 standard errors)", error.max())


def check_position_sets(sets: Any, examples: int = 50) -> None:
    """Check the contract of position sets: the free positions of a row get step indices 0, 1, … without gaps."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_indices(drawn: Rows, seed: int) -> None:
        free = drawn.maskable
        keys = sequence_keys(seed, "sets", torch.arange(len(free)))

        def score(masked: Tensor) -> Tensor:
            return drawn.importance.to(masked.device) * masked

        indices = called(sets.step_indices, {"free": free, "keys": keys, "score": score})
        is_tensor(indices, "step indices", torch.int64, free.shape)
        holds((indices >= 0) == free, "exactly the free positions must have an index of at least 0")
        holds(indices[~free] == -1, "the index of a position that is not free must be -1")
        alone = sets.step_indices(free[2:3], keys[2:3], lambda masked: score(masked)[2:3])
        holds(alone == indices[2:3], "a row must not depend on the rest of its batch")
        if sets.deterministic:
            holds(
                sets.step_indices(free, keys + 1, score) == indices,
                "deterministic sets must not depend on the key; if they do, remove deterministic = True",
            )
        for row in indices:
            there = row[row >= 0].unique()
            holds(there == torch.arange(len(there)), "the indices of position sets must not have gaps")
        if sets.ascending:
            begins = free & ~torch.cat([torch.zeros_like(free[:, :1]), free[:, :-1]], 1)
            together = begins.sum(1) <= 1
            last = indices.amax(1, keepdim=True)
            steps = (indices == indices.roll(1, 1) + 1) | (indices.roll(1, 1) == last) | ~free
            right = torch.where(begins, indices == 0, steps).all(1)
            holds(
                right | ~together,
                "with ascending = True, the indices of neighbours must rise by 1 from 0 and restart after the last one",
            )


def check_curriculum(curriculum: Any, examples: int = 50) -> None:
    """Check the contract of a curriculum: positive weights with mean 1 over each row's maskable tokens."""

    @for_examples(examples, drawn=rows(), progress=_PROGRESS)
    def holds_mean(drawn: Rows, progress: float) -> None:
        step, _ = masked_step(drawn)
        for ready in variants(curriculum, drawn):
            weigh = ready.weights
            weights = weigh(step, drawn.importance, progress)
            is_tensor(weights, "weights", torch.float32, step.masked.shape)
            holds((weights > 0) & weights.isfinite(), "weights must be positive and finite")
            count = step.maskable.sum(-1)
            mean = (weights.double() * step.maskable).sum(-1) / count.clamp(min=1)
            close(mean, count > 0, 1e-5, "weights must have mean 1 over each row's maskable tokens")
            assert isinstance(ready.stage(progress) or None, str), "stage() must return a nonempty string"
            if isinstance(ready, ExponentialWeighting):
                sure = drawn.importance.round()
                told = tilt(sure, ready.strength(progress), step.maskable)
                error = (weigh(step, sure, progress) - told).abs()
                holds(
                    error <= 1e-5 * told,
                    "the weight at importance 1 must be exp(strength) times the weight at importance 0",
                )

    def outcome(ready: Any, drawn: Rows) -> Any:
        return ready.weights(masked_step(drawn)[0], drawn.importance, 0.5)

    check_adaptive(curriculum, outcome, examples)


def check_target(target: Any, examples: int = 50) -> None:
    """Check the contract of an importance target: values in [0, 1] that are counted only at maskable tokens."""

    @for_examples(examples, drawn=rows())
    def holds_range(drawn: Rows) -> None:
        step, loss = masked_step(drawn)
        for ready in variants(target, drawn):
            wanted, counted = ready(step, loss)
            is_tensor(wanted, "targets", torch.float32, loss.shape)
            is_tensor(counted, "mask of counted tokens", torch.bool, loss.shape)
            holds((wanted >= 0) & (wanted <= 1), "targets must be in [0, 1]")
            holds(step.maskable[counted], "only maskable tokens may be counted")
            assert not wanted.requires_grad, "targets must not carry a gradient"

    def outcome(ready: Any, drawn: Rows) -> Any:
        drawn.generator.manual_seed(0)  # the same step each time
        return ready(*masked_step(drawn))[0]

    check_adaptive(target, outcome, examples)


def check_position_bias(bias: Any, examples: int = 50) -> None:
    """Check the contract of a position bias: one float32 value in [0, 1] per position."""

    @for_examples(examples, drawn=rows())
    def holds_values(drawn: Rows) -> None:
        length = drawn.importance.shape[-1]
        for ready in variants(bias, drawn):
            values = ready.values(length)
            is_tensor(values, "a bias", torch.float32, (length,))
            holds((values >= 0) & (values <= 1), "a bias must be in [0, 1]")

    check_adaptive(bias, lambda ready, drawn: ready.values(drawn.importance.shape[-1]), examples)


def check_estimator(estimator: Any, examples: int = 10) -> None:
    """Check the contract of an estimator: importance in [0, 1] per token that does not depend on other rows."""
    width = 8
    module = built(estimator, length=64, width=width)
    assert isinstance(module, nn.Module), "an estimator's build must return an nn.Module"
    assert estimator.reads in ("x", "z"), 'reads must be "x" or "z"'
    assert module.reads == estimator.reads, "the module and the estimator must have the same value of `reads`"
    module.eval()
    ids = VOCABULARY + (estimator.reads == "z")  # the mask is the last one
    table = torch.randn(ids, width, generator=torch.Generator().manual_seed(0))

    @for_examples(examples, drawn=rows())
    def holds_range(drawn: Rows) -> None:
        shape = (drawn.rate.shape[0], min(drawn.importance.shape[-1], 64))
        tokens = (drawn.uniform(*shape) * ids).long()
        maskable, t = drawn.maskable[:, : shape[1]], drawn.rate
        with torch.no_grad():
            importance = module(tokens, table[tokens], t, maskable)
            alone = module(tokens[7:8], table[tokens[7:8]], t[7:8], maskable[7:8])
        is_tensor(importance, "importance", torch.float32, shape)
        holds((importance >= 0) & (importance <= 1), "importance must be in [0, 1]")
        close(importance[7:8], alone, 1e-5, "a row must not depend on the rest of its batch")


def check_adaptive(spec: Any, outcome: Callable[[Any, Rows], Tensor], examples: int = 50) -> None:
    """Check a component with state, which implements `StatefulComponent`; components without state pass.

    Its statistics must add up over micro-batches, computing them must not change the state, and `state_dict` must save
    the whole state, so that a component that loads it has the same `outcome` for a batch.
    """
    if not isinstance(built(spec), StatefulComponent):
        return
    assert isinstance(built(spec), nn.Module), "a component with state must be an nn.Module"

    @for_examples(examples, drawn=rows())
    def holds_state(drawn: Rows) -> None:
        part, (step, loss) = built(spec), masked_step(drawn)
        before = {name: value.clone() for name, value in part.state_dict().items()}
        total = part.statistics(step, loss)
        by_rows = []
        for some in (slice(0, 3), slice(3, None)):
            tensors = {name: value for name, value in attrs.asdict(step).items() if value is not None}
            micro_batch = {name: value[some] for name, value in tensors.items()}
            by_rows.append(part.statistics(NoisedBatch(**micro_batch), loss[some]))
        close(
            torch.stack(by_rows).sum(0),
            total,
            1e-3,
            "the statistics of micro-batches must add up to those of the batch",
        )
        for name, value in part.state_dict().items():
            close(value, before[name], 0, f"statistics() must not change {name}")
        taught(part, 3, drawn)
        other = built(spec)
        other.load_state_dict(part.state_dict())
        close(outcome(other, drawn), outcome(part, drawn), 0, "state_dict() must contain the whole state")
        assert not list(part.parameters()), "the state must be in buffers, not in parameters"


def variants(spec: Any, drawn: Rows) -> Iterator[Any]:
    """Yield the built component and, if it has a state, also the component after three updates."""
    yield built(spec)
    if isinstance(built(spec), StatefulComponent):
        yield taught(built(spec), 3, drawn)
