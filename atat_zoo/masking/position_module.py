"""What position masking is when it is built: it holds the bias, which may learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from atat_zoo.diffusion.calibration import water_fill
from atat_zoo.diffusion.records import Adaptive

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.biases import BiasModule
    from atat_zoo.diffusion.records import Masked


class PositionModule(nn.Module):
    """Water-filling of (importance + strength · bias) / temperature."""

    def __init__(self, bias: nn.Module, temperature: float, strength: float) -> None:
        """Hold a bias; use `of_bias`, which also knows of biases that learn."""
        super().__init__()
        self.bias = bias
        self.temperature = temperature
        self.strength = strength

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L], for importance [B, L], rate [B], maskable bool [B, L]."""
        bias = cast("BiasModule", self.bias).values(importance.shape[-1]).double()
        return water_fill((importance.double() + self.strength * bias) / self.temperature, rate, maskable)


class AdaptivePositionModule(PositionModule):
    """The same with a bias that follows the training: it hands on what the trainer tells it."""

    def statistics(self, masked: Masked, loss: Tensor) -> Tensor:
        """Return what the bias wants to remember of a micro-batch."""
        return cast("Adaptive", self.bias).statistics(masked, loss)

    def update(self, total: Tensor, progress: float) -> None:
        """Hand the sum over the global batch to the bias."""
        cast("Adaptive", self.bias).update(total, progress)


def of_bias(bias: nn.Module, temperature: float, strength: float) -> PositionModule:
    """Return the module for a bias: `Adaptive` if and only if the bias is."""
    kind = AdaptivePositionModule if isinstance(bias, Adaptive) else PositionModule
    return kind(bias, temperature, strength)
