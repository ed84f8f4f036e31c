"""What position masking is when it is built: it holds the bias, which may learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from atat_zoo.diffusion.calibration import water_fill
from atat_zoo.diffusion.contracts import StatefulPart

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import Masked
    from atat_zoo.masking.position_bias import BiasModule


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
        return cast("StatefulPart", self.bias).statistics(masked, loss)

    def update(self, total: Tensor, progress: float) -> None:
        """Hand the sum over the global batch to the bias."""
        cast("StatefulPart", self.bias).update(total, progress)


def of_bias(bias: nn.Module, temperature: float, strength: float) -> PositionModule:
    """Return the module for a bias: `StatefulPart` if and only if the bias is."""
    kind = AdaptivePositionModule if isinstance(bias, StatefulPart) else PositionModule
    return kind(bias, temperature, strength)


class LineModule(nn.Module):
    """slope · i/(L−1) for i = 0 … L−1. Nothing of it is saved."""

    device_of: Tensor  # empty: it only knows where the module was moved to

    def __init__(self, slope: float) -> None:
        """Take the value of the last position, in [0, 1]."""
        super().__init__()
        self.slope = slope
        self.register_buffer("device_of", torch.empty(0), persistent=False)

    def values(self, length: int) -> Tensor:
        """Return the bias, float32 [length] in [0, 1]; a lone token has 0."""
        place = torch.arange(length, device=self.device_of.device)
        return (self.slope * place.double() / max(1, length - 1)).float()


class UShapeModule(nn.Module):
    """|2i/(L−1) − 1|^e for i = 0 … L−1. Nothing of it is saved."""

    device_of: Tensor  # empty: it only knows where the module was moved to

    def __init__(self, exponent: float) -> None:
        """Take the exponent e."""
        super().__init__()
        self.exponent = exponent
        self.register_buffer("device_of", torch.empty(0), persistent=False)

    def values(self, length: int) -> Tensor:
        """Return the bias, float32 [length] in [0, 1]; a lone token has 1."""
        # Whole numbers first, so that mirrored positions get the same number exactly.
        distance = (2 * torch.arange(length, device=self.device_of.device) - (length - 1)).abs()
        share = distance.double() / (length - 1) if length > 1 else distance.double() + 1
        return share.pow(self.exponent).float()


class RunningModule(nn.Module):
    """Exponentially forgetting sums of the loss and the count at each position.

    Sums and not means: a position that is seldom masked keeps what it knew, and a
    cold start needs no correction.
    """

    sums: Tensor  # float64 [2, L]: sum of losses, count

    def __init__(self, length: int, decay: float, floor: float) -> None:
        """Start without any memory, for sequences of up to `length` tokens."""
        super().__init__()
        self.decay = decay
        self.floor = floor
        self.register_buffer("sums", torch.zeros(2, length, dtype=torch.float64))

    def statistics(self, masked: Masked, loss: Tensor) -> Tensor:
        """Return the sum of masked losses and their count at each position, float64 [2, L]."""
        here = masked.masked.double()
        seen = torch.stack([(loss.detach().double() * here).sum(0), here.sum(0)])
        return nn.functional.pad(seen, (0, self.sums.shape[-1] - seen.shape[-1]))

    def update(self, total: Tensor, progress: float) -> None:
        """Forget a little and take in the sum over the global batch."""
        del progress
        self.sums.mul_(self.decay).add_(total)

    def values(self, length: int) -> Tensor:
        """Return the bias, float32 [length] in [0, 1].

        Raises:
            ValueError: for a length beyond the one it was built for.
        """
        if length > self.sums.shape[-1]:
            raise ValueError(f"this running bias has {self.sums.shape[-1]} positions, not {length}")
        loss, count = self.sums
        overall = loss.sum() / count.sum().clamp(min=1e-12)
        mean = torch.where(count > 0, loss / count.clamp(min=1e-12), overall)
        low, high = mean.amin(), mean.amax()
        spread = torch.maximum(high - low, self.floor * overall).clamp(min=1e-12)
        return ((mean - low) / spread).float()[:length]
