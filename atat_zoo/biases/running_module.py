"""The memory of the running bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.records import Masked


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
