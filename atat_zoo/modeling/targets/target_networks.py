"""The module of a target: running moments of the loss. Shapes: B sequences, L tokens."""

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.registry import Context


class RunningDifficulty(nn.Module):
    """The module of `difficulty` with a running scale: mean and standard deviation of the cross-entropy by mask rate.

    The state holds exponentially decaying sums of count, loss and squared loss per bin of the mask rate, so a bin that
    is rarely drawn keeps its moments, and the first steps need no bias correction.
    """

    moments: Tensor  # float64 [3, bins]: count, sum and sum of squares

    def __init__(self, context: Context, *, scale: str, decay: float, bins: int) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("moments", torch.zeros(3, bins, dtype=torch.float64))

    def _bins(self, rate: Tensor) -> Tensor:
        """Return the bin of each rate, int64 in the shape of `rate`."""
        bins = self.moments.shape[-1]
        return (rate * bins).long().clamp(0, bins - 1)

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return count, sum and sum of squares of the masked losses, float64 [3, bins]."""
        loss = loss.detach().double() * noised.masked
        rows = torch.stack([noised.masked.sum(-1).double(), loss.sum(-1), loss.square().sum(-1)])
        # A product instead of an indexed sum: the latter has no fixed order on a GPU.
        member = nn.functional.one_hot(self._bins(noised.rate), self.moments.shape[-1]).double()
        return rows @ member

    def update(self, total: Tensor, progress: float) -> None:
        """Decay the sums and add those of the global batch."""
        self.moments.mul_(self.decay).add_(total)

    def forward(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return σ((CE − μ(r))/s(r)), float32 [B, L] in [0, 1], and where it is valid, bool [B, L]."""
        moments = self.moments
        # A bin that was never drawn uses the moments of all bins.
        moments = torch.where(moments[0] > 0, moments, moments.sum(-1, keepdim=True))
        count = moments[0].clamp(min=1e-12)
        mean = moments[1] / count
        deviation = (moments[2] / count - mean.square()).clamp(min=1e-8).sqrt()
        row = self._bins(noised.rate)
        scaled = (loss.detach().double() - mean[row].unsqueeze(-1)) / deviation[row].unsqueeze(-1)
        counted = noised.masked & (self.moments[0].sum() > 0)
        return torch.where(counted, scaled.sigmoid().float(), 0.0), counted
