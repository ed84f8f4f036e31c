"""Parts with a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from torch import nn

from atat_zoo.diffusion.contracts import Masked
from atat_zoo.testing.batches import close, masked_step, rows, taught, tried

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.testing.batches import Rows


def check_adaptive(make: Callable[[], Any], outcome: Callable[[Any, Rows], Tensor], examples: int = 50) -> None:
    """Hold a part with a memory to `StatefulPart`.

    Its statistics add up over micro-batches, asking for them changes nothing, and
    what `state_dict` saves is all it remembers.

    Args:
        make: returns a new one.
        outcome: what it answers, from the part and a batch.
        examples: batches that are tried.
    """

    @tried(examples)
    @given(drawn=rows())
    def holds_memory(drawn: Rows) -> None:
        part = make()
        assert isinstance(make(), nn.Module), "a part with a memory is an nn.Module"
        step, loss = masked_step(drawn)
        before = {name: value.clone() for name, value in part.state_dict().items()}
        whole = part.statistics(step, loss)
        parts = [part.statistics(_rows_of(step, rows), loss[rows]) for rows in (slice(0, 3), slice(3, None))]
        close(torch.stack(parts).sum(0), whole, 1e-3, "statistics of micro-batches add up to those of the batch")
        for name, value in part.state_dict().items():
            close(value, before[name], 0, f"statistics() leaves {name} alone")
        part = taught(part, 3, drawn)
        other = make()
        other.load_state_dict(part.state_dict())
        close(outcome(other, drawn), outcome(part, drawn), 0, "all that is remembered is in state_dict")
        assert not list(part.parameters()), "what follows the training is a buffer, not a parameter"

    holds_memory()


def _rows_of(step: Masked, chosen: slice) -> Masked:
    return Masked(
        x=step.x[chosen],
        z=step.z[chosen],
        masked=step.masked[chosen],
        maskable=step.maskable[chosen],
        t=step.t[chosen],
        rate=step.rate[chosen],
        p=step.p[chosen],
    )
