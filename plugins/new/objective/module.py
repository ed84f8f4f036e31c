"""The module of the objective: its components and the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.modeling.objectives.denoising import DenoisingModule, metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from atat_zoo.modeling.objectives import Batch
    from atat_zoo.registry import Context


class Damped(DenoisingModule):
    """Objective with uniform masks at the mask rate of a uniformly drawn time."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, scale: float) -> None:
        super().__init__(context, parts, batch_size)
        self.scale = scale

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of a micro-batch and values to log; random draws depend only on the sample numbers."""
        self.begin(batch)
        step = self.masked_uniformly(batch, self.times(batch.index))
        ce = self.dense_cross_entropy(step)
        return metrics(step, ce, normalised(self.scale * (ce / self.scale).log1p(), batch))
