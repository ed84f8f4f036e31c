"""Checkpoints of the training state, and saved models: one per checkpoint, the best one and the final one.

A checkpoint is a pickle, and loading a pickle can call any function. Here, loading may build only tensors, numbers,
strings and containers of these, which is enough for Composer's state and ours, so no code from the file runs.
Composer's `CheckpointSaver` is not used because it writes in place, without a hash and without a model.
"""

import math
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from composer import Callback, Logger, State
from composer.utils import dist
from composer.utils.checkpoint import save_checkpoint
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from atat_zoo.evaluation.results.evaluation import Evaluation
from atat_zoo.experiment import Experiment, TrainSpec
from atat_zoo.experiment.runs import RunFolder, write_json
from atat_zoo.generation.model import Model
from atat_zoo.registry import Context
from atat_zoo.system import parsing
from atat_zoo.system.atomic_files import making_folder
from atat_zoo.system.errors import UserError
from atat_zoo.system.interruption import Interruption
from atat_zoo.training.composer_model import device_of_state, largest_over_ranks
from atat_zoo.training.ema import MovingAverage
from atat_zoo.training.sharding import WholeWeights, local

EVALUATION = "evaluation.json"  # next to the best model: the evaluation that made it the best


class CurrentModel:
    """Yields or saves the current model, neither sharded nor compiled; with an EMA, it has the weights of the EMA."""

    def __init__(
        self,
        experiment: Experiment,
        context: Context,
        objective: nn.Module,
        average: MovingAverage | None,
        whole: WholeWeights | None = None,
        base: dict[str, Any] | None = None,
    ) -> None:
        self.experiment, self.context, self.average, self.whole = experiment, context, average, whole
        self.module = whole.module if whole else objective
        self.base = base  # see `Model`

    @contextmanager
    def at(self, step: int) -> Iterator[Model]:
        """Yield the model, and restore the training weights after the `with` block; all ranks must enter the block."""
        # The compiled code only supports the shapes of a training step.
        eager: Any = torch.compiler.set_stance("force_eager") if self.experiment.train.compile else nullcontext()
        averaged = self.average.swapped() if self.average else nullcontext()
        with eager, averaged, self.whole.gathered() if self.whole else nullcontext():
            yield Model(
                experiment=self.experiment,
                context=self.context,
                tokenizer=self.context.tokenizer,
                module=self.module,
                step=step,
                base=self.base,
            )

    def write(self, step: int, folder: Path | None) -> None:
        """Write the model to `folder`; ranks without a folder only help to gather the weights."""
        if folder is None and self.whole is None:
            return
        with self.at(step) as model:
            if folder is not None:
                model.save(folder)

    def save(self, step: int, folder: Path, device: str) -> Model | None:
        """Write the final model, and return it on rank 0 (None on other ranks); all ranks must call this method."""
        if dist.get_global_rank() != 0:
            self.write(step, None)
            return None
        with making_folder(folder, replace=True) as beside:
            self.write(step, beside)
        # With an EMA, the module has its training weights again, so load the saved weights.
        return Model.load(folder, device)

    def keep_best(self, evaluation: Evaluation, folder: RunFolder) -> None:
        """Write the model as the best one if its bound is the lowest so far; all ranks must call this method."""
        first = dist.get_global_rank() == 0
        found = [first and is_better(evaluation, folder)]
        if dist.get_world_size() > 1:
            dist.broadcast_object_list(found)
        if not found[0]:
            return
        with making_folder(folder.best, replace=True) if first else nullcontext() as beside:
            self.write(evaluation.step, beside)
            if beside is not None:
                write_json(beside / EVALUATION, evaluation.to_table())


def is_better(evaluation: Evaluation, folder: RunFolder) -> bool:
    """Return whether an evaluation's own bound is lower than that of the run's best model.

    A best model that was evaluated with different settings, such as `evaluation.sequences`, counts as worse.
    """
    now, before = evaluation.to_table(), dict[str, Any]()
    with suppress(OSError, ValueError, TypeError):
        before = dict(parsing.from_json(parsing.read(folder.best / EVALUATION)))
    (name, own), best = evaluation.own, math.inf
    with suppress(KeyError, TypeError):
        if all(before[key] == now[key] for key in ("corpus", "split", "form", "method", "sequences", "draws", "seed")):
            best = float(before["bounds"][name]["nats_per_token"])
    return own.nats_per_token < best


def stop(folder: RunFolder, reason: str) -> None:
    """Raise a `UserError` that stops a diverged run and says what to change."""
    last = folder.last_checkpoint()
    saved = f"the last good checkpoint is step {last.step} in {last.path}" if last else "no checkpoint was saved yet"
    raise UserError(
        f"{reason}; {saved}. "
        "Begin a new run with a smaller optimizer.learning_rate, more schedule.warmup_steps, or train.precision=fp32"
    )


def asked_to_stop(message: Callable[[str], object], number: int, again: bool) -> None:
    """Print that training will stop after this step, or raise KeyboardInterrupt at a second Ctrl-C."""
    if again and number == signal.SIGINT:
        raise KeyboardInterrupt
    message("saving a checkpoint after this step, then stopping")


class Checkpoints(Callback):
    """A callback that saves a checkpoint every `save_every` steps, at the end, and when training is interrupted."""

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
        """Save a checkpoint if one is due, then stop if training was interrupted."""
        step = int(state.timestamp.batch)
        stopping = bool(largest_over_ranks(int(self.interruption.signal is not None), device_of_state(state)))
        assert state.max_duration is not None  # the step at which a callback has stopped training, or `steps`
        if stopping or step % self.spec.save_every == 0 or step >= state.max_duration.value:
            self.save(state, step)
        if stopping and step < self.spec.steps:
            self.interrupted = True
            state.stop_training()

    def save(self, state: State, step: int) -> None:
        """Write a checkpoint and its model; raise `UserError` if a weight is not finite or the disk is full."""
        if step == self.saved:
            return
        first, self.saved = self.saved < 0, step
        weights = torch.stack([local(p.detach()).sum() for p in state.model.parameters()])
        if largest_over_ranks(int(not weights.isfinite().all()), device_of_state(state)):
            # The loss of this step was computed before its gradient spoilt the weights.
            stop(self.folder, f"the weights are not finite after step {step}")
        # Only rank 0 writes; the other ranks help to gather the state.
        if dist.get_global_rank() != 0:
            self.write_model(step, None)
            save_checkpoint(state, str(self.folder.checkpoints / "unused"))
            return
        with making_folder(self.folder.checkpoint_model(step), replace=True) as beside:
            self.write_model(step, beside)
        try:
            with self.folder.writing_checkpoint(step, self.spec.keep_checkpoints) as path:
                save_checkpoint(state, str(path), ignore_keys=partial(without_generators, base=self.base))
                if first:
                    check_saved(path)
        except RuntimeError as error:
            # torch's error for a full disk names only a wrong position in the file.
            if "inline_container" not in str(error) and "PytorchStreamWriter" not in str(error):
                raise
            raise UserError(
                f"the checkpoint of step {step} cannot be written completely to {self.folder.checkpoints}: is the disk "
                f"full? Free some space and continue with --resume {self.folder.path}; earlier checkpoints are "
                "unchanged"
            ) from error


def without_generators(checkpoint: dict[str, Any], base: Iterable[str] = ()) -> None:
    """Remove the states of random generators from a checkpoint: they are never restored, and some are not plain data.

    Also remove the weights named in `base`, which another run stores.
    """
    del checkpoint["rng"]
    for name in base:
        del checkpoint["state"]["model"][name]


def check_saved(path: Path) -> None:
    """Raise a `UserError` if a checkpoint that was just written could not be loaded again."""
    with only_data():
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if foreign:
        raise UserError(
            f"a checkpoint with {', '.join(sorted(foreign))} could not be loaded again; make the `state_dict` of the "
            "plugin's callback, algorithm, optimizer or schedule return only tensors, numbers and strings"
        )


# Types that a checkpoint may contain in addition to those that torch allows. `TorchVersion` is a subclass of str.
ALLOWED: list[Any] = [timedelta, TorchVersion]
_ONLY_DATA, _ANYTHING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextmanager
def only_data() -> Iterator[None]:
    """Restrict `torch.load` to plain data in a `with` block, even if its caller, such as Composer, asks for more."""
    before = {name: os.environ.pop(name, None) for name in (_ONLY_DATA, _ANYTHING)}
    os.environ[_ONLY_DATA] = "1"
    try:
        with torch.serialization.safe_globals(ALLOWED):
            yield
    finally:
        del os.environ[_ONLY_DATA]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def inert(checkpoint: dict[str, Any], base: Mapping[str, Tensor] | None = None) -> None:
    """Remove what Composer would evaluate as Python from a loaded checkpoint, and add the weights in `base` to it.

    Pass this function to Composer as `load_ignore_keys`. `base` contains weights that the checkpoint lacks, such as the
    base weights of LoRA.
    """
    state = checkpoint["state"]
    state["model"] = {**(base or {}), **state["model"]}
    # Composer evaluates the strings that describe the algorithms in a list; from a dict it loads only their states.
    if "algorithms" in state:
        state["algorithms"] = dict(state["algorithms"])


class Loading(Callback):
    """A callback whose `guarded` turns any error raised while Composer loads a checkpoint into a `UserError`."""

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None when training starts from the beginning
        self.busy = False

    def before_load(self, state: State, logger: Logger) -> None:
        """Mark the checkpoint as being loaded."""
        self.busy = True

    def after_load(self, state: State, logger: Logger) -> None:
        """Mark the checkpoint as loaded."""
        self.busy = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Load only plain data in a `with` block; raise a `UserError` that says why the checkpoint cannot be loaded."""
        try:
            with only_data():
                yield
        except Exception as error:
            if self.path is None or not self.busy or isinstance(error, UserError):
                raise
            if isinstance(error, UnpicklingError):
                foreign = re.search(r"GLOBAL (\S+)", str(error))
                what = f" ({foreign[1]})" if foreign else ""
                why = f"it contains more than tensors, numbers and strings{what}, so it was not loaded and "
                why += "none of its code ran"
            else:
                why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise UserError(
                f"cannot resume from the checkpoint {self.path}: {why}; delete it to continue from an earlier "
                "one, or train again with --overwrite"
            ) from error
