"""A masking strategy that masks important tokens more often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderMasking:
    """Masks with probability min(1, λ e^s) where importance exceeds `level`, else min(1, λ); its mean is the rate."""

    name = "placeholder"
    summary = "masks tokens above an importance threshold more often"
    refs = ()

    level: float = param(0.5, help="importance threshold", ge=0, le=1)
    strength: float = param(1.0, help="strength s: importance above the threshold multiplies λ by exp(s)", ge=0, le=50)

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return mask probabilities p, float32 [B, L], given importance [B, L], rate [B] and maskable, bool [B, L]."""
        from atat_zoo.diffusion.calibration import water_fill

        return water_fill(self.strength * (importance > self.level).double(), rate, maskable)


@hookimpl
def atat_zoo_masking() -> list[type]:
    """Return the masking strategies in this package."""
    return [PlaceholderMasking]
