"""How far the best token is from being sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Confidence:
    """(V/(V−1))(1 − max p): the error rate of the best guess, scaled to reach 1."""

    name = "confidence"
    summary = "what the most probable token leaves, (V/(V−1))(1 − max p)"
    refs = ("arXiv:2202.04200",)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        from atat_zoo.uncertainty.distribution import probabilities

        return self.of(*probabilities(logits))

    def of(self, p: Tensor, count: Tensor) -> Tensor:
        """Return the same from probabilities [..., V] and the number of tokens that take part [...]."""
        from atat_zoo.uncertainty.distribution import bounded

        return bounded((1 - p.amax(-1)) * (count / (count - 1).clamp(min=1)), count)
