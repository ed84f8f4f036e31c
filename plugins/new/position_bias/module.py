"""The `nn.Module` of the bias."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Waves(nn.Module):
    """Module without parameters that computes a wave with a wavelength of `period` positions."""

    def __init__(self, period: float) -> None:
        super().__init__()
        self.period = period

    def values(self, length: int) -> Tensor:
        """Return the bias of each position, float32 [length] in [0, 1]."""
        place = torch.arange(length, dtype=torch.float64)
        return (0.5 - 0.5 * (2 * math.pi / self.period * place).cos()).clamp(0, 1).float()
