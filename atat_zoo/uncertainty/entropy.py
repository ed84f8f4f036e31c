"""Entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Entropy:
    """Σ −p log p / log V: the share of the largest entropy possible."""

    name = "entropy"
    summary = "entropy of the prediction over log V"
    refs = ("doi:10.1002/j.1538-7305.1948.tb01338.x",)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        from atat_zoo.uncertainty.distribution import probabilities

        return self.of(*probabilities(logits))

    def of(self, p: Tensor, count: Tensor) -> Tensor:
        """Return the same from probabilities [..., V] and the number of tokens that take part [...]."""
        import torch

        from atat_zoo.uncertainty.distribution import bounded

        return bounded(torch.special.entr(p).sum(-1) / count.to(p.dtype).clamp(min=2).log(), count)
