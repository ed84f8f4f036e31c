"""Checks of the parts of a training step: mask drawings, curricula, targets, position biases, estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from atat_zoo.curricula import ExponentialWeighting
from atat_zoo.curricula.weighting import tilt
from atat_zoo.diffusion.contracts import NoisedBatch, StatefulPart
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.testing.batches import (
    VOCABULARY,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atat_zoo.testing.batches import Rows

_DRAWN = 20_000


def check_mask_drawing(drawing: Any, examples: int = 50) -> None:
    """Check the contract of a drawing: marginals p, exact at 0 and 1, a function of p and the row's key."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_keys(drawn: Rows, seed: int) -> None:
        p = drawn.importance.float() * drawn.maskable
        keys = row_keys(seed, "mask", torch.arange(p.shape[0]))
        mask = called(drawing, {"p": p, "keys": keys})
        is_tensor(mask, "a mask", torch.bool, p.shape)
        holds(~mask[p == 0], "p = 0 is never masked")
        holds(mask[p == 1], "p = 1 is always masked")
        holds(drawing(p[2:3], keys[2:3]) == mask[2:3], "a row does not depend on the others of its batch")

    @for_examples(max(1, examples // 10), drawn=rows(), seed=st.integers(0, 2**31))
    def holds_marginals(drawn: Rows, seed: int) -> None:
        p = drawn.uniform(6)
        keys = row_keys(seed, "mask", torch.arange(_DRAWN))
        share = drawing(p.expand(_DRAWN, 6).contiguous(), keys).double().mean(0)
        error = (share - p).abs() / (p * (1 - p) / _DRAWN).sqrt().clamp(min=1e-9)
        holds(error <= 6, "a token is masked with probability p (within 6 standard errors)", error.max)


def check_curriculum(curriculum: Any, examples: int = 50) -> None:
    """Check the contract of a curriculum: positive weights with mean 1 over each row's maskable tokens."""

    @for_examples(examples, drawn=rows(), progress=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)))
    def holds_mean(drawn: Rows, progress: float) -> None:
        step, _ = masked_step(drawn)
        for ready in variants(curriculum, drawn):
            weigh = ready.weights
            weights = weigh(step, drawn.importance, progress)
            is_tensor(weights, "weights", torch.float32, step.masked.shape)
            holds((weights > 0) & weights.isfinite(), "weights are positive and finite")
            count = step.maskable.sum(-1)
            mean = (weights.double() * step.maskable).sum(-1) / count.clamp(min=1)
            close(mean, count > 0, 1e-5, "weights have mean 1 over each row's maskable tokens")
            assert isinstance(ready.stage(progress), str), "a stage has a name"
            assert ready.stage(progress), "a stage has a name"
            if isinstance(ready, ExponentialWeighting):
                sure = drawn.importance.round()
                found, told = weigh(step, sure, progress), tilt(sure, ready.strength(progress), step.maskable)
                holds((found - told).abs() <= 1e-5 * told, "importance 1 weighs exp(strength) times importance 0")

    check_adaptive(
        curriculum, lambda ready, drawn: ready.weights(masked_step(drawn)[0], drawn.importance, 0.5), examples
    )


def check_target(target: Any, examples: int = 50) -> None:
    """Check the contract of a target: in [0, 1], counted at maskable tokens only, row by row."""

    @for_examples(examples, drawn=rows())
    def holds_range(drawn: Rows) -> None:
        step, loss = masked_step(drawn)
        for ready in variants(target, drawn):
            wanted, counted = ready(step, loss)
            is_tensor(wanted, "targets", torch.float32, loss.shape)
            is_tensor(counted, "where they count", torch.bool, loss.shape)
            holds((wanted >= 0) & (wanted <= 1), "targets are in [0, 1]")
            holds(step.maskable[counted], "only maskable tokens count")
            assert not wanted.requires_grad, "targets carry no gradient"

    check_adaptive(target, lambda ready, drawn: ready(*_step_of(drawn))[0], examples)


def check_position_bias(bias: Any, examples: int = 50) -> None:
    """Check the contract of a position bias: float32 values in [0, 1], one per position."""

    @for_examples(examples, drawn=rows())
    def holds_values(drawn: Rows) -> None:
        length = drawn.importance.shape[-1]
        for ready in variants(bias, drawn):
            values = ready.values(length)
            is_tensor(values, "a bias", torch.float32, (length,))
            holds((values >= 0) & (values <= 1), "a bias is in [0, 1]")

    check_adaptive(bias, lambda ready, drawn: ready.values(drawn.importance.shape[-1]), examples)


def check_estimator(estimator: Any, examples: int = 10) -> None:
    """Check the contract of an estimator: importance in [0, 1] per token, row by row, from maskable tokens only."""
    width = 8
    module = built(estimator, length=64, width=width)
    assert isinstance(module, nn.Module), "an estimator's build returns an nn.Module"
    assert estimator.reads in ("x", "z"), 'an estimator reads "x" or "z"'
    assert module.reads == estimator.reads, "its module reads what it says"
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
        holds((importance >= 0) & (importance <= 1), "importance is in [0, 1]")
        close(importance[7:8], alone, 1e-5, "a row does not depend on the others of its batch")


def check_adaptive(spec: Any, outcome: Callable[[Any, Rows], Tensor], examples: int = 50) -> None:
    """Check that a part with state implements `StatefulPart`; others pass.

    Its statistics add up over micro-batches, asking for them changes nothing, and `state_dict` saves all its state.

    Args:
        spec: its specification.
        outcome: what the part returns for a batch.
        examples: batches that are tried.
    """
    if not isinstance(built(spec), StatefulPart):
        return
    assert isinstance(built(spec), nn.Module), "a part with state is an nn.Module"

    @for_examples(examples, drawn=rows())
    def holds_state(drawn: Rows) -> None:
        part, (step, loss) = built(spec), masked_step(drawn)
        before = {name: value.clone() for name, value in part.state_dict().items()}
        total = part.statistics(step, loss)
        parts = [part.statistics(_rows_of(step, rows), loss[rows]) for rows in (slice(0, 3), slice(3, None))]
        close(torch.stack(parts).sum(0), total, 1e-3, "statistics of micro-batches add up to those of the batch")
        for name, value in part.state_dict().items():
            close(value, before[name], 0, f"statistics() leaves {name} alone")
        taught(part, 3, drawn)
        other = built(spec)
        other.load_state_dict(part.state_dict())
        close(outcome(other, drawn), outcome(part, drawn), 0, "all that is remembered is in state_dict")
        assert not list(part.parameters()), "what follows the training is a buffer, not a parameter"


def _rows_of(step: NoisedBatch, chosen: slice) -> NoisedBatch:
    return NoisedBatch(**{name: value[chosen] for name, value in attrs.asdict(step, recurse=False).items()})


def _step_of(drawn: Rows) -> Any:
    # The same step each time it is asked for.
    drawn.generator.manual_seed(0)
    return masked_step(drawn)


def variants(spec: Any, drawn: Rows) -> Iterator[Any]:
    """Yield the part ready for use; one with state also after some steps."""
    yield built(spec)
    if isinstance(built(spec), StatefulPart):
        yield taught(built(spec), 3, drawn)
