"""The assembled model as Composer wants it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from composer.models import ComposerModel
from composer.utils import dist
from torch import Tensor, nn

from atat_zoo.objectives import Batch
from atat_zoo.training.meters import StepMeters


class ZooModel(ComposerModel):
    """Wraps an `ObjectiveModule`; everything that has weights runs inside `forward`, as DDP needs it."""

    def __init__(self, objective: nn.Module, steps: int, bf16: bool, detailed: bool = False) -> None:
        super().__init__()
        self.bf16 = bf16
        self.objective: Any = objective
        self.steps = steps
        self.step = 0
        self.meters = StepMeters(detailed)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the figures of a micro-batch; `loss` among them."""
        rows = Batch(
            tokens=batch["tokens"],
            maskable=batch["maskable"],
            index=batch["index"],
            mean_maskable=batch["mean_maskable"][0],
            progress=self.step / self.steps,
        )
        # Composer has bf16 for GPUs only; a CPU with the instructions trains twice as fast with it.
        on_cpu = self.bf16 and rows.tokens.device.type == "cpu"
        with torch.autocast("cpu", torch.bfloat16) if on_cpu else nullcontext():
            figures: dict[str, Tensor] = self.objective.loss(rows)
        return figures

    def loss(self, outputs: dict[str, Tensor], batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss, and add the figures of the micro-batch to the metrics of the step."""
        self.meters.update(outputs)
        return outputs["loss"]

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        """Refuse: the bound is evaluated by `atat_zoo.evaluation`, not by Composer's loop."""
        raise RuntimeError("evaluate with atat_zoo.evaluation, which computes the bound")


def prepare(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the mean number of maskable tokens per row of the global batch, one copy a row so that it splits.

    With it the loss is normalised over the global batch, whatever the ranks and micro-batches.
    """
    mean = batch["maskable"].sum(1).float().mean()
    if dist.get_world_size() > 1:
        dist.all_reduce(mean)
        mean = mean / dist.get_world_size()
    return {**batch, "mean_maskable": mean.clamp(min=1.0).expand(len(batch["tokens"]))}


def sum_over_ranks(value: Tensor) -> None:
    """Sum a tensor over the ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(value, reduce_operation="SUM")
