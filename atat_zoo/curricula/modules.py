"""The state of the dynamic curriculum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from atat_zoo.curricula import tilt

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.curricula import DynamicCurriculum
    from atat_zoo.diffusion.contracts import Masked

_STAGES = ("easy", "medium", "hard")


class DynamicModule(nn.Module):
    """A stage, and the fast and the slow mean of the loss in it.

    Decisions are arithmetic on the buffers and not Python branches, so that a step
    on a GPU never waits for one.
    """

    position: Tensor  # int64 []: index of the stage
    flat: Tensor  # int64 []: flat steps in a row
    sums: Tensor  # float64 [2, 2]: fast and slow, each the forgetting sum of losses and of ones
    keep: Tensor  # float64 [2, 1]: what fast and slow keep per step

    def __init__(self, spec: DynamicCurriculum) -> None:
        """Start in the easy stage."""
        super().__init__()
        self.spec = spec
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flat", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(2, 2, dtype=torch.float64))
        keep = torch.tensor([[1 - 1 / spec.fast], [1 - 1 / spec.slow]], dtype=torch.float64)
        self.register_buffer("keep", keep, persistent=False)

    def stage(self, progress: float) -> str:
        """Return `"easy"`, `"medium"` or `"hard"`, whatever the progress."""
        del progress
        return _STAGES[int(self.position)]

    def weights(self, masked: Masked, importance: Tensor, progress: float) -> Tensor:
        """Return c, float32 [B, L]: positive, with mean 1 over each row's maskable tokens."""
        del progress
        strength = self.spec.sharpness * (self.position - 1).double()
        return tilt(importance, strength, masked.maskable)

    def statistics(self, masked: Masked, loss: Tensor) -> Tensor:
        """Return the sum of the masked losses and their count, float64 [2]."""
        here = masked.masked.double()
        return torch.stack([(loss.detach().double() * here).sum(), here.sum()])

    def update(self, total: Tensor, progress: float) -> None:
        """Follow the loss by one step of the global batch, and change the stage if its trend says so.

        A step without masks or with a loss that is not finite changes nothing.
        """
        del progress
        mean = total[0] / total[1].clamp(min=1)
        usable = (total[1] > 0) & mean.isfinite()
        sums = self.sums * self.keep + torch.stack([mean, torch.ones_like(mean)])
        fast, slow = sums[:, 0] / sums[:, 1]
        gain = (slow - fast) / slow.clamp(min=1e-12)
        rises = gain < -self.spec.tolerance
        flat = torch.where(rises | (gain >= self.spec.threshold), 0, self.flat + 1)
        moved = (flat >= self.spec.patience).long() - rises.long()
        position = (self.position + moved).clamp(0, len(_STAGES) - 1)
        fresh = position != self.position
        flat, sums = torch.where(fresh, 0, flat), torch.where(fresh, 0.0, sums)
        self.position.copy_(torch.where(usable, position, self.position))
        self.flat.copy_(torch.where(usable, flat, self.flat))
        self.sums.copy_(torch.where(usable, sums, self.sums))
