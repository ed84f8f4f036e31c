"""The variance of the drawn token, not of the probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Variance:
    """(V/(V−1))(1 − Σp²): the Gini impurity, scaled to reach 1.

    It is the total variance of the one-hot token. The variance of the
    probabilities themselves, which the source documents name, is largest when the
    model is sure, and so has the opposite sign.
    """

    name = "variance"
    summary = "variance of the drawn one-hot token, (V/(V−1))(1 − Σp²)"
    refs = ()

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        from atat_zoo.uncertainty.distribution import probabilities

        return self.of(*probabilities(logits))

    def of(self, p: Tensor, count: Tensor) -> Tensor:
        """Return the same from probabilities [..., V] and the number of tokens that take part [...]."""
        import torch

        from atat_zoo.uncertainty.distribution import bounded

        scale = count / (count - 1).clamp(min=1)
        return bounded((1 - torch.linalg.vecdot(p, p)) * scale, count)
