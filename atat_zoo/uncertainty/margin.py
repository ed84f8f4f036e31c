"""How close the second token is to the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Margin:
    """1 − (p₁ − p₂), with the two most probable tokens: 1 for a tie, whatever the rest."""

    name = "margin"
    summary = "how close the two most probable tokens are, 1 − (p₁ − p₂)"
    refs = ("arXiv:2502.06768",)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        from atat_zoo.uncertainty.distribution import probabilities

        return self.of(*probabilities(logits))

    def of(self, p: Tensor, count: Tensor) -> Tensor:
        """Return the same from probabilities [..., V] and the number of tokens that take part [...]."""
        from atat_zoo.uncertainty.distribution import bounded

        top = p.topk(min(2, p.shape[-1]), dim=-1).values
        return bounded(1 - (top[..., 0] - top[..., -1]), count)
