"""Uncertainty metrics: how unsure a prediction is, from 0 (one token) to 1 (all alike).

Each is invariant to permuting the vocabulary and, to rounding, to adding a
constant to the logits. Logits of −∞ are tokens that are excluded: they do not
count in V. One token left gives 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Uncertainty(Protocol):
    """A component of the kind uncertainty: a callable on tensors."""

    name: str

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        ...
