"""A curriculum that begins with higher loss weights for the first tokens of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import NoisedBatch
    from atat_zoo.registry import Context

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderCurriculum:
    """Weights the loss at position i of L in proportion to exp(−s·i/L), where s falls linearly to 0 in training."""

    name = "placeholder"
    summary = "gives higher loss weights to the first tokens of a sequence early in training"
    refs = ()

    sharpness: float = param(
        1.0, help="initial s: the first token has about exp(s) times the weight of the last", ge=0, le=50
    )

    def build(self, context: Context) -> PlaceholderCurriculum:
        """Return the component itself, which needs no network or state to compute weights."""
        return self

    def stage(self, progress: float) -> str:
        """Return the name of the stage: "beginnings" during training, "all" at its end (`progress` = 1)."""
        return "beginnings" if progress < 1 else "all"

    def weights(self, masked: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        """Return positive loss weights, float32 [B, L], whose mean over the maskable tokens of a sequence is 1."""
        import torch

        maskable = masked.maskable
        length = maskable.shape[1]
        place = torch.arange(length, dtype=torch.float64, device=maskable.device) / length
        raw = (-self.sharpness * (1 - progress) * place).exp().expand(maskable.shape)
        count = maskable.sum(1, keepdim=True)
        mean = (raw * maskable).sum(1, keepdim=True) / count.clamp(min=1)
        return torch.where(count > 0, raw / mean, 1.0).float()


@hookimpl
def atat_zoo_curriculum() -> list[type]:
    """Return the curricula in this package."""
    return [PlaceholderCurriculum]
