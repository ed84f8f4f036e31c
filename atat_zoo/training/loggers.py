"""Loggers: destinations for training metrics in addition to metrics.jsonl.

`train.loggers` is a list of Composer's loggers, which keep their usual names and their usual behaviour on several
ranks. They receive

- `train/…`: the numbers in metrics.jsonl (loss, mask rate and its target, learning rate, curriculum strength, …), the
  curriculum's stage as `train/stage/NAME` = 1, and the mean and standard deviation of the importance, every
  `train.log_every` steps;
- histograms of the `importance` and `token_loss` of masked tokens and of `mask_rates`, if the destination supports
  histograms;
- `validation/…` or `test/…`, as in `evaluation.split`: the metrics, and exp of each bound (perplexity for `nelbo`);
- the metrics of the callbacks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from composer.loggers import LoggerDestination


class Logger(Protocol):
    """The interface of logger components, which may name an optional dependency (`package`, see `Optimizer`)."""

    def build(self, folder: Path) -> LoggerDestination:
        """Return an instance of Composer's `LoggerDestination`.

        It receives histograms if it has a method `log_histogram(name, values, step)`. It may write to `folder`, a
        folder inside the run folder that is kept when the run is resumed.
        """


@component
class FileLogger(Logger):
    """Composer's FileLogger: one text file per rank in the run's `logs` folder, and a new file after each resume."""

    name = "file"
    summary = "text file in the run folder"
    flush_every: int = param(10, help="number of steps between flushes to disk", ge=1)

    @override
    def build(self, folder: Path) -> LoggerDestination:
        from composer.loggers import FileLogger as Destination

        number = len(list(folder.glob(f"log-*-rank{os.environ.get('RANK', '0')}.txt")))
        path = str(folder / f"log-{number}-rank{{rank}}.txt")
        return Destination(path, capture_stdout=False, capture_stderr=False, flush_interval=self.flush_every)


@component
class TensorBoardLogger(Logger):
    """Composer's TensorboardLogger: event files in the run's `logs` folder. Requires `atat-zoo[tensorboard]`."""

    name = "tensorboard"
    summary = "TensorBoard event files"
    package = ("tensorboard", "atat-zoo[tensorboard]")
    flush_every: int = param(100, help="number of steps between flushes to disk", ge=1)

    @override
    def build(self, folder: Path) -> LoggerDestination:
        from atat_zoo.training.metrics_writer import TensorBoardDestination

        return TensorBoardDestination(str(folder), flush_interval=self.flush_every)


@component
class WandbLogger(Logger):
    """Composer's WandBLogger: Weights & Biases, with the account of `wandb login`. Requires `atat-zoo[wandb]`."""

    name = "wandb"
    summary = "Weights & Biases"
    package = ("wandb", "atat-zoo[wandb]")
    project: str = param("atat-zoo", help="W&B project")
    entity: str | None = param(None, help="W&B user or team (default: that of the account)")
    group: str | None = param(None, help="W&B group of the run")
    tags: tuple[str, ...] = param((), help="W&B tags of the run")

    @override
    def build(self, folder: Path) -> LoggerDestination:
        from atat_zoo.training.metrics_writer import WandbDestination

        return WandbDestination(
            project=self.project,
            entity=self.entity,
            group=self.group,
            tags=list(self.tags),
            init_kwargs={"dir": str(folder)},
        )


@component
class MLflowLogger(Logger):
    """Composer's MLFlowLogger: an MLflow server, or the run's `logs` folder. Requires `atat-zoo[mlflow]`."""

    name = "mlflow"
    summary = "MLflow, on a server or in the run folder"
    package = ("mlflow", "atat-zoo[mlflow]")
    experiment: str = param("atat-zoo", help="MLflow experiment name")
    tracking_uri: str | None = param(None, help="MLflow tracking server (default: the run's `logs` folder)")

    @override
    def build(self, folder: Path) -> LoggerDestination:
        from composer.loggers import MLFlowLogger

        uri = self.tracking_uri or (folder / "mlruns").resolve().as_uri()
        return MLFlowLogger(experiment_name=self.experiment, tracking_uri=uri, log_system_metrics=False)
