"""What happens around a step: memory of the parts, moving average, records, checkpoints, interruption.

Composer runs callbacks of one event in the order in which they are listed.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from composer import Callback, Logger, State
from composer.utils import dist
from composer.utils.checkpoint import save_checkpoint
from torch import Tensor, nn

from atat_zoo.errors import UserError
from atat_zoo.training.composer_model import finite, sum_over_ranks
from atat_zoo.training.memory import peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from atat_zoo.experiment import TrainSpec
    from atat_zoo.run import RunFolder
    from atat_zoo.training.composer_model import ZooModel


class Progress(Callback):
    """Tells the model how far the training is, and lets its parts take in each step."""

    def __init__(self, model: ZooModel) -> None:
        self.model = model

    def batch_start(self, state: State, logger: Logger) -> None:
        """Set the step before the forward, and begin its figures."""
        self.model.step = int(state.timestamp.batch)
        self.model.meters.reset()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Hand the step's statistics, summed over ranks, to the parts with a memory."""
        self.model.objective.end_step(sum_over_ranks, int(state.timestamp.batch) / self.model.steps)


class MovingAverage(Callback):
    """Keeps an exponential moving average of the weights; `swapped` puts it in their place.

    The decay is min(d, (1 + k)/(10 + k)) at step k, so that a short training is
    not an average of its first weights.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.live = [p for p in module.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def batch_end(self, state: State, logger: Logger) -> None:
        """Move the average towards the weights."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        torch._foreach_lerp_(self.average, [p.detach() for p in self.live], 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Evaluate and save with the average; the training's own weights come back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, average in zip(self.live, self.average, strict=True):
            kept = live.detach().clone()
            live.copy_(average)
            average.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the average, for the checkpoint."""
        return {"steps": self.steps, "average": [a.cpu() for a in self.average]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's average."""
        self.steps = state["steps"]
        for mine, theirs in zip(self.average, state["average"], strict=True):
            mine.copy_(theirs)


class Records(Callback):
    """Writes metrics.jsonl and stops at a loss that is no number."""

    def __init__(
        self, model: ZooModel, folder: RunFolder, spec: TrainSpec, report: Callable[[int, dict[str, Any]], None]
    ) -> None:
        self.model, self.folder, self.spec, self.report = model, folder, spec, report
        self.began, self.busy, self.tokens, self.peak = 0.0, 0.0, 0, 0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Count from where the training continues."""
        self.tokens = int(state.timestamp.token)
        # What a run took at most is not less because it was continued with less.
        self.peak = max((int(line.get("peak_memory", 0)) for line in self.folder.records()), default=0)
        device = _device_of(state)
        if device.type == "cuda":  # what another training in this process took is not this one's
            torch.cuda.reset_peak_memory_stats(device)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start the clock: what happens between steps, such as an evaluation, is not a step's time."""
        self.began = time.perf_counter()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Check the loss; at every `log_every` steps write a line."""
        step = int(state.timestamp.batch)
        self.busy += time.perf_counter() - self.began
        losses = state.total_loss_dict
        loss = float(losses["loss/train/total"])
        if not finite(loss):
            stop(self.folder, f"the loss is {loss} at step {step}")
        if step % self.spec.log_every and step != self.spec.steps:
            return
        line = {"step": step, "loss": loss, **self.model.meters.compute()}
        tokens = int(state.timestamp.token)
        line["learning_rate"] = state.schedulers[0].get_last_lr()[0]
        line["stage"] = self.model.objective.stage(step / self.model.steps)
        line["tokens"] = tokens
        line["tokens_per_second"] = round((tokens - self.tokens) / max(1e-9, self.busy), 1)
        line["seconds"] = round(float(state.timestamp.total_wct.total_seconds()), 3)
        line["peak_memory"] = self._peak(state)
        self.busy, self.tokens = 0.0, tokens
        if dist.get_global_rank() == 0:
            self.folder.record(line)
        self.report(step, line)

    def _peak(self, state: State) -> int:
        """Return the most memory that a rank took so far, in bytes; all ranks must call it."""
        device = _device_of(state)
        most = torch.tensor([max(self.peak, peak_memory(device))], device=device)
        if dist.get_world_size() > 1:
            dist.all_reduce(most, reduce_operation="MAX")
        self.peak = int(most.item())
        return self.peak


def stop(folder: RunFolder, what: str) -> None:
    """Stop a training that has diverged, and say what to try."""
    last = folder.last_checkpoint()
    kept = f"the last good checkpoint is step {last.step} in {last.path}" if last else "there is no checkpoint yet"
    raise UserError(
        f"{what}; {kept}. "
        "Begin a new run with a smaller optimizer.learning_rate, more schedule.warmup_steps, or train.precision=fp32"
    )


class Checkpoints(Callback):
    """Saves every `save_every` steps, at the end, and when asked to stop."""

    def __init__(self, folder: RunFolder, spec: TrainSpec, interruption: Interruption) -> None:
        self.folder, self.spec, self.interruption = folder, spec, interruption
        self.saved = -1

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if it is time; then stop if that was asked for."""
        step = int(state.timestamp.batch)
        stopping = self.interruption.agreed(state)
        if stopping or step % self.spec.save_every == 0 or step == self.spec.steps:
            self.save(state, step)
        if stopping and step < self.spec.steps:
            self.interruption.step = step
            state.stop_training()  # type: ignore[no-untyped-call]

    def save(self, state: State, step: int) -> None:
        """Write a checkpoint beside the old ones; it counts only when it is whole."""
        if step == self.saved:
            return
        self.saved = step
        weights = torch.stack([p.detach().sum() for p in state.model.parameters()])
        if not bool(weights.isfinite().all()):
            # The loss of this step was computed before its gradient spoilt the weights.
            stop(self.folder, f"the weights are not finite after step {step}")
        # Only rank 0 writes; the others take part in collecting the state.
        if dist.get_global_rank() != 0:
            save_checkpoint(state, str(self.folder.checkpoints / "unused"))
            return
        try:
            with self.folder.writing_checkpoint(step, self.spec.checkpoints_kept) as path:
                save_checkpoint(state, str(path))
        except RuntimeError as error:
            # torch's writer says of a full disk only that a position in the file is not the one it expected.
            if "inline_container" not in str(error) and "PytorchStreamWriter" not in str(error):
                raise
            raise UserError(
                f"the checkpoint of step {step} cannot be written whole to {self.folder.checkpoints}: "
                f"is the disk full? Free some space"
                f" and continue with --resume {self.folder.path}: earlier checkpoints are untouched"
            ) from error


class Interruption:
    """Turns Ctrl-C and SIGTERM into a stop after the step; a second Ctrl-C stops at once."""

    def __init__(self, message: Callable[[str], None]) -> None:
        self.message = message
        self.signal: int | None = None
        self.step: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        """Take over the signals."""
        # Python gives signals to the main thread only; a training in another one is stopped by its owner.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        self.message("stopping after this step, and saving it")

    def agreed(self, state: State) -> bool:
        """Say whether any rank was told to stop; all ranks get the same answer."""
        if dist.get_world_size() == 1:
            return self.signal is not None
        asked = torch.tensor([float(self.signal is not None)], device=_device_of(state))
        dist.all_reduce(asked, reduce_operation="MAX")
        return bool(asked.item())


def _device_of(state: State) -> torch.device:
    parameter: Tensor = next(state.model.parameters())
    return parameter.device


class Evaluations(Callback):
    """Evaluates every `evaluate_every` steps."""

    def __init__(self, every: int, steps: int, evaluate: Callable[[int], None]) -> None:
        self.every, self.steps, self.evaluate = every, steps, evaluate

    def batch_end(self, state: State, logger: Logger) -> None:
        """Evaluate if it is time; the end has an evaluation of its own."""
        step = int(state.timestamp.batch)
        if self.every and step % self.every == 0 and step < self.steps:
            self.evaluate(step)
