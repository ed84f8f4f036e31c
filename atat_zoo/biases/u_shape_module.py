"""The values of the U-shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


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
