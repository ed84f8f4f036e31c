"""The `nn.Module` of the objective, which holds its components and computes the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.modeling.objectives.denoising import DenoisingModule, metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from atat_zoo.modeling.objectives import Batch
    from atat_zoo.registry import Context


class Damped(DenoisingModule):
    """Module that masks the tokens of a sequence with equal probability, at a uniform time, and damps large losses."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, scale: float) -> None:
        super().__init__(context, parts, batch_size)
        self.scale = scale

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return a dict with a micro-batch's `loss` and metrics; masks depend only on the seed and sample numbers."""
        self.begin(batch)
        step = self.masked_uniformly(batch, self.times(batch.index))
        ce = self.dense_cross_entropy(step)
        return metrics(step, ce, normalised(self.scale * (ce / self.scale).log1p(), batch))
