"""Draws: from log-probabilities to a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


class Draw(Protocol):
    """A component of the kind draw: a callable on tensors. `needs` may name "history"."""

    name: str

    @property
    def needs(self) -> frozenset[str]:
        """What the loop must fill in."""
        ...

    def __call__(self, log_probs: Tensor, keys: Tensor, step: Step, rows: Tensor) -> Tensor:
        """Return a token per distribution, int64 [M], of ids 0 … V−1; a probability of zero is never drawn.

        Args:
            log_probs: SUBS log-probabilities [M, V].
            keys: counter-based keys, int64 [M], of (row seed, step, position).
            step: the step.
            rows: which row of the step each distribution belongs to, int64 [M].
        """
        ...
