"""The training step of `mlm`. B rows of a micro-batch, L tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.diffusion.bounds import uniform_order
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.noise import LinearNoise
from atat_zoo.objectives.denoising import DenoisingModule, metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Masked
    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


class MLMModule(DenoisingModule):
    """A denoiser that is trained at one mask rate."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, share: float) -> None:
        """Take the parts, and the share of tokens that is masked."""
        # The training has no schedule; those estimators of the bound that follow one are given the linear one.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)
        self.share = share

    def mask(self, batch: Batch) -> tuple[Masked, Tensor]:
        """Mask k tokens of every row; returns the step and k, int64 [B], 0 where a row has nothing maskable."""
        n = batch.maskable.sum(1)
        k = (self.share * n).round().long().clamp(min=1).minimum(n)
        order = uniform_order(batch.maskable, row_keys(self.context.seed, "mask", batch.index))
        share = k / n.clamp(min=1)
        step = self.masked(batch, (order < k[:, None]) & batch.maskable, share, share[:, None] * batch.maskable)
        return step, k

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the metrics; see `ObjectiveModule`."""
        self.begin(batch)
        step, k = self.mask(batch)
        ce = self.dense_cross_entropy(step)
        weight = batch.maskable.sum(1) / k.clamp(min=1)
        return metrics(step, ce, normalised(weight[:, None] * ce, batch))
