"""An uncertainty metric based on collision entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderUncertainty:
    """−log Σp² / log V for probabilities p of V tokens: the Rényi entropy of order 2 divided by its maximum."""

    name = "placeholder"
    summary = "collision entropy of the prediction, divided by its maximum"
    refs = ("https://projecteuclid.org/euclid.bsmsp/1200512181",)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]; V does not count logits of −∞."""
        import torch

        precise = torch.float64 if logits.dtype == torch.float64 else torch.float32
        count = logits.isneginf().logical_not().sum(-1)
        collision = logits.softmax(-1, dtype=precise).square().sum(-1)
        share = -collision.log() / count.clamp(min=2).to(precise).log()
        return torch.where(count > 1, share.clamp(0, 1), 0.0).float()


@hookimpl
def atat_zoo_uncertainty() -> list[type]:
    """Return the uncertainty metrics in this package."""
    return [PlaceholderUncertainty]
