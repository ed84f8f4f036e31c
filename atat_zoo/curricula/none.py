"""No curriculum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.records import Masked
    from atat_zoo.registry import Context


@component
class NoCurriculum:
    """Every token weighs 1 from the first step to the last."""

    name = "none"
    summary = "every token weighs 1, from the first step to the last"
    refs = ()

    def build(self, context: Context) -> NoCurriculum:
        """Return itself: there is nothing to prepare."""
        del context
        return self

    def stage(self, progress: float) -> str:
        """Return `"none"` at any progress."""
        del progress
        return "none"

    def weights(self, masked: Masked, importance: Tensor, progress: float) -> Tensor:
        """Return ones, float32 [B, L]."""
        import torch

        del importance, progress
        return torch.ones_like(masked.maskable, dtype=torch.float32)
