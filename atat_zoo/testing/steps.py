"""Parts that take part in a training step: drawings, curricula, targets, biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.contracts import StatefulPart
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.testing.adaptive import check_adaptive
from atat_zoo.testing.batches import built, close, holds, masked_step, rows, taught, tried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.testing.batches import Rows

_DRAWN = 20_000


def check_mask_drawing(drawing: Any, examples: int = 50) -> None:
    """Hold a drawing to its contract: marginals p, sure at 0 and 1, a function of p and the row's key."""

    @tried(examples)
    @given(drawn=rows(), seed=st.integers(0, 2**31))
    def holds_keys(drawn: Rows, seed: int) -> None:
        p = drawn.importance.float() * drawn.maskable
        keys = row_keys(seed, "mask", torch.arange(p.shape[0]))
        state = torch.get_rng_state()
        mask = drawing(p, keys)
        assert mask.dtype == torch.bool, f"a mask is bool, not {mask.dtype}"
        assert mask.shape == p.shape, "a mask has the shape of p"
        holds(~mask[p == 0], "p = 0 is never masked")
        holds(mask[p == 1], "p = 1 is always masked")
        holds(drawing(p[2:3], keys[2:3]) == mask[2:3], "a row does not depend on the others of its batch")
        assert torch.equal(torch.get_rng_state(), state), "no random number but those of the keys is drawn"

    @tried(max(1, examples // 10))
    @given(drawn=rows(), seed=st.integers(0, 2**31))
    def holds_marginals(drawn: Rows, seed: int) -> None:
        p = drawn.uniform(6)
        keys = row_keys(seed, "mask", torch.arange(_DRAWN))
        share = drawing(p.expand(_DRAWN, 6).contiguous(), keys).double().mean(0)
        error = (share - p).abs() / (p * (1 - p) / _DRAWN).sqrt().clamp(min=1e-9)
        holds(error <= 6, "a token is masked with probability p (within 6 standard errors)", error.max)

    holds_keys()
    holds_marginals()


def check_curriculum(curriculum: Any, examples: int = 50) -> None:
    """Hold a curriculum to its contract: positive weights with mean 1 over each row's maskable tokens."""

    @tried(examples)
    @given(drawn=rows(), progress=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)))
    def holds_mean(drawn: Rows, progress: float) -> None:
        step, _ = masked_step(drawn)
        for ready in _variants(curriculum, drawn):
            weights = ready.weights(step, drawn.importance, progress)
            assert weights.dtype == torch.float32, f"weights are float32, not {weights.dtype}"
            holds((weights > 0) & weights.isfinite(), "weights are positive and finite")
            count = step.maskable.sum(-1)
            mean = (weights.double() * step.maskable).sum(-1) / count.clamp(min=1)
            close(mean, count > 0, 1e-5, "weights have mean 1 over each row's maskable tokens")
            assert isinstance(ready.stage(progress), str), "a stage has a name"
            assert ready.stage(progress), "a stage has a name"

    holds_mean()
    if isinstance(built(curriculum), StatefulPart):
        check_adaptive(
            lambda: built(curriculum),
            lambda ready, drawn: ready.weights(masked_step(drawn)[0], drawn.importance, 0.5),
            examples,
        )


def check_target(target: Any, examples: int = 50) -> None:
    """Hold a target to its contract: in [0, 1], counted at maskable tokens only, row by row."""

    @tried(examples)
    @given(drawn=rows())
    def holds_range(drawn: Rows) -> None:
        step, loss = masked_step(drawn)
        for ready in _variants(target, drawn):
            wanted, counted = ready(step, loss)
            assert wanted.dtype == torch.float32, f"a target is float32, not {wanted.dtype}"
            assert counted.dtype == torch.bool, "where it counts is bool"
            assert wanted.shape == counted.shape == loss.shape, "targets have the shape of the loss"
            holds((wanted >= 0) & (wanted <= 1), "targets are in [0, 1]")
            holds(step.maskable[counted], "only maskable tokens count")
            assert not wanted.requires_grad, "targets carry no gradient"

    holds_range()
    if isinstance(built(target), StatefulPart):
        check_adaptive(lambda: built(target), lambda ready, drawn: ready(*_step_of(drawn))[0], examples)


def check_position_bias(bias: Any, examples: int = 50) -> None:
    """Hold a position bias to its contract: float32 values in [0, 1], one a position."""

    @tried(examples)
    @given(drawn=rows())
    def holds_values(drawn: Rows) -> None:
        length = drawn.importance.shape[-1]
        for ready in _variants(bias, drawn):
            values = ready.values(length)
            assert values.dtype == torch.float32, f"a bias is float32, not {values.dtype}"
            assert values.shape == (length,), "a bias has one value a position"
            holds((values >= 0) & (values <= 1), "a bias is in [0, 1]")

    holds_values()
    if isinstance(built(bias), StatefulPart):
        check_adaptive(lambda: built(bias), lambda ready, drawn: ready.values(drawn.importance.shape[-1]), examples)


def _step_of(drawn: Rows) -> Any:
    # The same step each time it is asked for.
    drawn.generator.manual_seed(0)
    return masked_step(drawn)


def _variants(spec: Any, drawn: Rows) -> Iterator[Any]:
    """Yield the part ready for use; one with a memory also after some steps."""
    yield built(spec)
    if isinstance(built(spec), StatefulPart):
        yield taught(built(spec), 3, drawn)
