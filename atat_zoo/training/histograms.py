"""Composer's logger destinations, extended by histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from composer.loggers import TensorboardLogger, WandBLogger
from composer.utils import dist
from typing_extensions import override

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class TakesHistograms(Protocol):
    """A logger's destination that draws histograms."""

    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        """Log `values`, float32 [N] on the CPU, of this rank after optimizer step `step`."""
        ...


class TensorBoardDestination(TensorboardLogger, TakesHistograms):
    """TensorBoard with histograms."""

    @override
    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        if self.writer is not None and dist.get_global_rank() == 0:
            self.writer.add_histogram(name, values, global_step=step)


class WandbDestination(WandBLogger, TakesHistograms):
    """Weights & Biases with histograms."""

    @override
    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        if dist.get_global_rank() == 0:
            import wandb

            self.log_metrics({name: wandb.Histogram(values.tolist())}, step)
