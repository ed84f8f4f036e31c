"""The writer of metrics.jsonl, which also sends the metrics to the loggers."""

import math
import time
from collections.abc import Callable
from typing import Any

from composer import Callback, Logger, State
from composer.loggers import LoggerDestination, TensorboardLogger, WandBLogger
from composer.utils import dist
from torch import Tensor

from atat_zoo.experiment import TrainSpec
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.system.devices import reset_peak_memory
from atat_zoo.training.checkpoints import stop
from atat_zoo.training.composer_model import ZooModel, device_of_state, largest_over_ranks
from atat_zoo.training.memory import peak_memory

# Prefixes of the metrics that Composer and the zoo log themselves, in contrast to those from callbacks.
_CLOCKS = tuple(f"time/{unit}" for unit in ("iteration", "epoch", "batch", "sample", "token"))
_OWN = ("train/", "validation/", "test/", "trainer/", "loss/", *_CLOCKS)


class CallbackValues(LoggerDestination):
    """The numbers that callbacks and algorithms log, collected for the next line of metrics.jsonl."""

    def __init__(self) -> None:
        self.values: dict[str, float | None] = {}

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Add the numbers of callbacks; a non-finite number becomes None, because JSON cannot express it."""
        numbers = {name: float(value) for name, value in metrics.items() if not name.startswith(_OWN)}
        self.values |= {name: value if math.isfinite(value) else None for name, value in numbers.items()}

    def take(self) -> dict[str, float | None]:
        """Return the numbers logged since the last call."""
        values, self.values = self.values, {}
        return values


def without_composers_loss(destination: LoggerDestination) -> LoggerDestination:
    """Make a logger drop Composer's loss of each step, because `train/loss` replaces it, and return the logger."""
    log = destination.log_metrics

    def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
        if kept := {name: value for name, value in metrics.items() if not name.startswith("loss/")}:
            log(kept, step)

    destination.log_metrics = log_metrics  # type: ignore[method-assign]
    return destination


class TensorBoardDestination(TensorboardLogger):
    """Composer's TensorBoard logger with histograms."""

    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        """On rank 0, log `values`, float32 [N] on the CPU, as a histogram for optimizer step `step`."""
        if self.writer is not None and dist.get_global_rank() == 0:
            self.writer.add_histogram(name, values, global_step=step)


class WandbDestination(WandBLogger):
    """Composer's Weights & Biases logger with histograms."""

    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        """On rank 0, log `values`, float32 [N] on the CPU, as a histogram for optimizer step `step`."""
        if dist.get_global_rank() == 0:
            import wandb

            self.log_metrics({name: wandb.Histogram(values.tolist())}, step)


class MetricsWriter(Callback):
    """A callback that writes metrics to metrics.jsonl and the loggers, and stops training at a non-finite loss.

    `loss` is the mean over all ranks and the optimizer steps since the previous line, and the speeds cover these steps.
    Composer has already copied each loss to the host, so summing is free. Other metrics are those of the line's step.
    """

    def __init__(
        self,
        model: ZooModel,
        folder: RunFolder,
        spec: TrainSpec,
        report: Callable[[int, int, dict[str, Any]], None],
        values: CallbackValues | None = None,
        *,
        utilisation: Callable[[dict[str, Any]], dict[str, float]] = lambda line: {},
        every: int = 0,
    ) -> None:
        self.model, self.folder, self.spec, self.report, self.values = model, folder, spec, report, values
        self.utilisation = utilisation
        self.began, self.busy, self.tokens, self.peak = 0.0, 0.0, 0, 0
        self.losses: list[float] = []  # of the steps since the last line
        self.every = every  # steps between evaluations with metrics; 0 if metrics are not evaluated
        self.line: dict[str, Any] | None = None  # the line of the step that has just ended
        self.metrics: dict[str, float | None] = {}  # from an evaluation after this step

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start with the token count and the peak memory of the run that is resumed, if any."""
        self.tokens = int(state.timestamp.token)
        # The peak of a run includes the time before it was resumed.
        lines = self.folder.read_metrics(damaged=True)  # another rank may read the lines before they are cut
        self.peak = max((int(line.get("peak_memory", 0)) for line in lines), default=0)
        reset_peak_memory(device_of_state(state))  # of an earlier training run in this process

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start the timer here, so that the time of an evaluation between two steps is not counted."""
        self.began = time.perf_counter()
        self.line, self.metrics = None, {}

    def batch_end(self, state: State, logger: Logger) -> None:
        """Prepare a line every `log_every` steps, at the last step, and at each evaluation that has metrics."""
        step = int(state.timestamp.batch)
        self.busy += time.perf_counter() - self.began
        loss = float(state.total_loss_dict["loss/train/total"])
        if not math.isfinite(loss):
            stop(self.folder, f"the loss is {loss} at step {step}")
        self.losses.append(loss)
        if step % self.spec.log_every and step != self.spec.steps and not (self.every and step % self.every == 0):
            return
        tokens, progress = int(state.timestamp.token), step / self.model.steps
        strength = self.model.objective.curriculum_strength(progress)
        line = {
            "step": step,
            "loss": math.fsum(self.losses) / len(self.losses),
            **self.model.meters.compute(),
            "learning_rate": state.schedulers[0].get_last_lr()[0],
            "stage": self.model.objective.stage(progress),
            **({} if strength is None else {"curriculum_strength": strength}),
            "tokens": tokens,
            "tokens_per_second": round((tokens - self.tokens) / max(1e-9, self.busy), 1),
            "seconds": round(float(state.timestamp.total_wct.total_seconds()), 3),
            "peak_memory": self._peak(state),
        }
        self.busy, self.tokens, self.losses = 0.0, tokens, []
        line |= self.utilisation(line)
        if self.spec.loggers:  # the callbacks have already sent their values to the loggers
            self._log(logger, line, step)
        if self.values:
            line |= self.values.take()
        self.line = line

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Write the line that `batch_end` prepared, with the metrics of an evaluation at this step."""
        if self.line is None:
            return
        line = self.line | self.metrics
        if dist.get_global_rank() == 0:
            self.folder.append_metrics(line)
        self.report(line["step"], self.spec.steps, line)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last line, so that the first line after a resume averages the whole interval."""
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses since the last line."""
        self.losses = [*state["losses"]]

    def _log(self, logger: Logger, line: dict[str, Any], step: int) -> None:
        curves = line | self.model.meters.details()
        curves[f"stage/{curves.pop('stage')}"] = 1
        for name in ("step", "mask_rates"):  # the mask rates are logged as a histogram below
            curves.pop(name, None)
        logger.log_metrics({f"train/{name}": value for name, value in curves.items() if value is not None}, step)
        for destination in logger.destinations:
            if (draw := getattr(destination, "log_histogram", None)) is not None:
                for name, values in self.model.meters.histograms().items():
                    draw(f"train/{name}", values, step)

    def _peak(self, state: State) -> int:
        """Return the largest peak memory of any rank so far, in bytes; all ranks must call this method."""
        device = device_of_state(state)
        self.peak = largest_over_ranks(max(self.peak, peak_memory(device)), device)
        return self.peak
