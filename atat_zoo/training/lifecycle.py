"""The work around a step: state of the parts, moving average, metrics, evaluations, checkpoints, interruption.

Composer runs the callbacks of one event in the order of their list, then the loggers. At the end of a step:

1. `Progress`: the parts update their state, so that later callbacks see and save the new one;
2. `MovingAverage` adds the new weights;
3. the experiment's callbacks measure, so that
4. `MetricsWriter` has their values for its line, and stops a training that has diverged before it is evaluated;
5. `Evaluations` use the moving average, and may tell a callback to stop the training (before the first step, too,
   where they only measure);
6. the callbacks passed to `train`.

After all of them, at the event `batch_checkpoint`, `MetricsWriter` writes its line, with the metrics of an evaluation
of this step; `Checkpoints` saves the state, then stops if interrupted.
"""

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from composer import Callback, Logger, State
from composer.loggers import LoggerDestination, TensorboardLogger, WandBLogger
from composer.utils import dist
from composer.utils.checkpoint import save_checkpoint
from torch import Tensor, nn

from atat_zoo.errors import UserError
from atat_zoo.experiment import TrainSpec
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.system.atomic import making_folder
from atat_zoo.system.devices import reset_peak_memory
from atat_zoo.system.interruption import Interruption
from atat_zoo.training.composer_model import ZooModel, sum_over_ranks
from atat_zoo.training.continuing import check_saved, without_generators
from atat_zoo.training.memory import peak_memory
from atat_zoo.training.sharding import local, sharded_like, whole
from atat_zoo.training.utilisation import Utilisation


class Progress(Callback):
    """Sets the progress of the model, and updates the state of its parts at each step."""

    def __init__(self, model: ZooModel) -> None:
        self.model, self.updating = model, -1

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Begin the step, if need be again with smaller micro-batches; not within the update of the weights."""
        self.model.step = int(state.timestamp.batch)
        if self.updating == self.model.step:
            raise UserError(
                f"the GPU's memory does not suffice for the optimizer's update at step {self.updating + 1}, which "
                "needs as much with smaller micro-batches; take a smaller backbone, or an optimizer that keeps less"
            )
        self.model.meters.reset()
        self.model.objective.begin_step()

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """The gradients are complete: what follows is the update."""
        self.updating = self.model.step

    def batch_end(self, state: State, logger: Logger) -> None:
        """Give the step's statistics, summed over ranks, to the parts that have a state."""
        self.model.objective.end_step(sum_over_ranks, int(state.timestamp.batch) / self.model.steps)


class MovingAverage(Callback):
    """An exponential moving average of the weights; `swapped` exchanges the two.

    The decay is min(d, (1 + k)/(10 + k)) at step k, so that a short training is not an average of its first weights.
    """

    def __init__(self, module: nn.Module, decay: float, device: str = "cpu") -> None:
        self.decay, self.steps = decay, 0
        self.live = [p for p in module.parameters() if p.requires_grad]
        self.average = [p.detach().clone().to(device) for p in self.live]

    @torch.no_grad()
    def batch_end(self, state: State, logger: Logger) -> None:
        """Move the average towards the weights."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        torch._foreach_lerp_(self.average, [p.detach() for p in self.live], 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the average in a `with` block, to evaluate and save; afterwards restore the weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, average in zip(self.live, self.average, strict=True):
            weights = live.detach().clone()
            live.copy_(average)
            average.copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the average for the checkpoint."""
        return {"steps": self.steps, "average": [whole(a).cpu() for a in self.average]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's average."""
        self.steps = state["steps"]
        for mine, theirs in zip(self.average, state["average"], strict=True):
            mine.copy_(sharded_like(theirs, mine))


# Prefixes of the metrics that Composer and the zoo log, as opposed to callbacks.
_CLOCKS = tuple(f"time/{unit}" for unit in ("iteration", "epoch", "batch", "sample", "token"))
_OWN = ("train/", "validation/", "test/", "trainer/", "loss/", *_CLOCKS)


class CallbackValues(LoggerDestination):
    """The numbers that callbacks and algorithms log, collected for the next line of metrics.jsonl."""

    def __init__(self) -> None:
        self.values: dict[str, float | None] = {}

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Add numbers; a non-finite one becomes None, for JSON."""
        numbers = {name: float(value) for name, value in metrics.items() if not name.startswith(_OWN)}
        self.values |= {name: value if math.isfinite(value) else None for name, value in numbers.items()}

    def take(self) -> dict[str, float | None]:
        """Return the numbers logged since the last call."""
        values, self.values = self.values, {}
        return values


def without_composers_loss(destination: LoggerDestination) -> LoggerDestination:
    """Return a logger's destination that does not get the loss from Composer: `train/loss` is the same number."""
    log = destination.log_metrics

    def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
        if kept := {name: value for name, value in metrics.items() if not name.startswith("loss/")}:
            log(kept, step)

    destination.log_metrics = log_metrics  # type: ignore[method-assign]
    return destination


@runtime_checkable
class TakesHistograms(Protocol):
    """A logger's destination that draws histograms."""

    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        """Log `values`, float32 [N] on the CPU, of this rank after optimizer step `step`."""


class TensorBoardDestination(TensorboardLogger):
    """TensorBoard with histograms."""

    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        """See `TakesHistograms`."""
        if self.writer is not None and dist.get_global_rank() == 0:
            self.writer.add_histogram(name, values, global_step=step)


class WandbDestination(WandBLogger):
    """Weights & Biases with histograms."""

    def log_histogram(self, name: str, values: Tensor, step: int) -> None:
        """Log `values` as `TensorBoardDestination` does."""
        if dist.get_global_rank() == 0:
            import wandb

            self.log_metrics({name: wandb.Histogram(values.tolist())}, step)


class MetricsWriter(Callback):
    """Writes to metrics.jsonl and to the loggers, and stops at a non-finite loss."""

    def __init__(
        self,
        model: ZooModel,
        folder: RunFolder,
        spec: TrainSpec,
        report: Callable[[int, int, dict[str, Any]], None],
        values: CallbackValues | None = None,
        *,
        utilisation: Utilisation | None = None,
        every: int = 0,
    ) -> None:
        self.model, self.folder, self.spec, self.report, self.values = model, folder, spec, report, values
        self.utilisation = utilisation
        self.began, self.busy, self.tokens, self.peak = 0.0, 0.0, 0, 0
        self.every = every  # steps from an evaluation with metrics to the next one; 0 without
        self.line: dict[str, Any] | None = None  # of the step that has just ended
        self.metrics: dict[str, float | None] = {}  # of an evaluation after it

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the counts where the training continues."""
        self.tokens = int(state.timestamp.token)
        # The peak of a run includes the time before it was continued.
        lines = self.folder.read_metrics(damaged=True)  # another rank may read before they are cut
        self.peak = max((int(line.get("peak_memory", 0)) for line in lines), default=0)
        reset_peak_memory(_device_of(state))  # of another training in this process

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start the clock; an evaluation between two steps does not count."""
        self.began = time.perf_counter()
        self.line, self.metrics = None, {}

    def batch_end(self, state: State, logger: Logger) -> None:
        """Check the loss; every `log_every` steps there is a line, and at every evaluation that has metrics for it."""
        step = int(state.timestamp.batch)
        self.busy += time.perf_counter() - self.began
        loss = float(state.total_loss_dict["loss/train/total"])
        if not math.isfinite(loss):
            stop(self.folder, f"the loss is {loss} at step {step}")
        if step % self.spec.log_every and step != self.spec.steps and not (self.every and step % self.every == 0):
            return
        tokens, progress = int(state.timestamp.token), step / self.model.steps
        strength = self.model.objective.curriculum_strength(progress)
        line = {
            "step": step,
            "loss": loss,
            **self.model.meters.compute(),
            "learning_rate": state.schedulers[0].get_last_lr()[0],
            "stage": self.model.objective.stage(progress),
            **({} if strength is None else {"curriculum_strength": strength}),
            "tokens": tokens,
            "tokens_per_second": round((tokens - self.tokens) / max(1e-9, self.busy), 1),
            "seconds": round(float(state.timestamp.total_wct.total_seconds()), 3),
            "peak_memory": self._peak(state),
        }
        self.busy, self.tokens = 0.0, tokens
        if self.utilisation:
            line |= self.utilisation.figures(line)
        if self.spec.loggers:  # which have had the values of callbacks from these
            self._log(logger, line, step)
        if self.values:
            line |= self.values.take()
        self.line = line

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Write the line."""
        if self.line is None:
            return
        line = self.line | self.metrics
        if dist.get_global_rank() == 0:
            self.folder.append_metrics(line)
        self.report(line["step"], self.spec.steps, line)

    def _log(self, logger: Logger, line: dict[str, Any], step: int) -> None:
        curves = line | self.model.meters.details()
        curves[f"stage/{curves.pop('stage')}"] = 1
        for name in ("step", "mask_rates"):  # the rates drawn are a histogram, as below
            curves.pop(name, None)
        logger.log_metrics({f"train/{name}": value for name, value in curves.items() if value is not None}, step)
        for destination in logger.destinations:
            if isinstance(destination, TakesHistograms):
                for name, values in self.model.meters.histograms().items():
                    destination.log_histogram(f"train/{name}", values, step)

    def _peak(self, state: State) -> int:
        """Return the peak memory of any rank so far, in bytes; all ranks must call it."""
        self.peak = _largest(max(self.peak, peak_memory(_device_of(state))), state)
        return self.peak


def stop(folder: RunFolder, reason: str) -> None:
    """Stop a training that has diverged, with advice."""
    last = folder.last_checkpoint()
    saved = f"the last good checkpoint is step {last.step} in {last.path}" if last else "there is no checkpoint yet"
    raise UserError(
        f"{reason}; {saved}. "
        "Begin a new run with a smaller optimizer.learning_rate, more schedule.warmup_steps, or train.precision=fp32"
    )


class Checkpoints(Callback):
    """Saves every `save_every` steps, at the end, and before an interruption."""

    def __init__(
        self,
        folder: RunFolder,
        spec: TrainSpec,
        interruption: Interruption,
        write_model: Callable[[int, Path | None], None],
        base: Iterable[str] = (),
    ) -> None:
        self.folder, self.spec, self.interruption, self.write_model = folder, spec, interruption, write_model
        self.saved, self.interrupted, self.base = -1, False, base

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if it is time; then stop if the training was interrupted."""
        step = int(state.timestamp.batch)
        stopping = bool(_largest(int(self.interruption.signal is not None), state))
        assert state.max_duration is not None  # the step at which a callback has stopped the training, or `steps`
        if stopping or step % self.spec.save_every == 0 or step >= state.max_duration.value:
            self.save(state, step)
        if stopping and step < self.spec.steps:
            self.interrupted = True
            state.stop_training()

    def save(self, state: State, step: int) -> None:
        """Write a checkpoint and its model beside the old ones; an incomplete one is ignored."""
        if step == self.saved:
            return
        first, self.saved = self.saved < 0, step
        weights = torch.stack([local(p.detach()).sum() for p in state.model.parameters()])
        if _largest(int(not weights.isfinite().all()), state):
            # The loss of this step was computed before its gradient spoilt the weights.
            stop(self.folder, f"the weights are not finite after step {step}")
        # Only rank 0 writes; the others take part in collecting the state.
        if dist.get_global_rank() != 0:
            self.write_model(step, None)
            save_checkpoint(state, str(self.folder.checkpoints / "unused"))
            return
        with making_folder(self.folder.checkpoint_model(step), replace=True) as beside:
            self.write_model(step, beside)
        try:
            with self.folder.writing_checkpoint(step, self.spec.checkpoints_kept) as path:
                save_checkpoint(state, str(path), ignore_keys=partial(without_generators, base=self.base))
                if first:
                    check_saved(path)
        except RuntimeError as error:
            # torch's error for a full disk names only a wrong position in the file.
            if "inline_container" not in str(error) and "PytorchStreamWriter" not in str(error):
                raise
            raise UserError(
                f"the checkpoint of step {step} cannot be written completely to {self.folder.checkpoints}: is the "
                f"disk full? Free some space and continue with --resume {self.folder.path}: earlier checkpoints are "
                "untouched"
            ) from error


def asked_to_stop(message: Callable[[str], object], number: int, again: bool) -> None:
    """Say that the training stops; a second Ctrl-C stops it at once."""
    if again and number == signal.SIGINT:
        raise KeyboardInterrupt
    message("stopping after this step, and saving it")


def _largest(number: int, state: State) -> int:
    """Return the largest number of any rank; all ranks must call it."""
    if dist.get_world_size() == 1:
        return number
    largest = torch.tensor([number], device=_device_of(state))
    dist.all_reduce(largest, reduce_operation="MAX")
    return int(largest.item())


def _device_of(state: State) -> torch.device:
    parameter: Tensor = next(state.model.parameters())
    return parameter.device
