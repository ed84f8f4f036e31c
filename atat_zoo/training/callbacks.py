"""Callbacks: additional metrics, and early stopping.

`train.callbacks` is a list of callbacks. They are Composer's, under their usual names, and log to the loggers and to
metrics.jsonl. docs/how-to/composer.md says why others are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.experiment import Experiment
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from composer import Callback as ComposerCallback


class Callback(Protocol):
    """The interface of callback components; `package` is as in `Optimizer`."""

    def build(self) -> ComposerCallback:
        """Return Composer's callback.

        At the end of a step it runs after the updates of the components and of the EMA, and before metrics.jsonl is
        written. A callback with a state has `state_dict` and `load_state_dict` for checkpoints. A method
        `evaluated(perplexity, state)`, if present, gets the held-out perplexity, or NaN, of each evaluation during
        training.
        """


@component
class SpeedMonitorCallback(Callback):
    """Composer's SpeedMonitor: batches, samples and tokens per second over a window of steps, as `throughput/…`."""

    name = "speed_monitor"
    summary = "logs throughput over a window of steps"
    window: int = param(10, help="window, in steps", ge=1)

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import SpeedMonitor

        return SpeedMonitor(window_size=self.window)


@component
class MemoryMonitorCallback(Callback):
    """Composer's MemoryMonitor: memory of torch's allocator on a GPU, as `memory/…`; logs nothing on a CPU."""

    name = "memory_monitor"
    summary = "logs GPU memory"

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import MemoryMonitor

        return MemoryMonitor()


@component
class LRMonitorCallback(Callback):
    """Composer's LRMonitor: the learning rate of each parameter group, as `lr-OPTIMIZER/group0`, …."""

    name = "lr_monitor"
    summary = "logs the learning rate of each parameter group"

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import LRMonitor

        return LRMonitor()


@component
class OptimizerMonitorCallback(Callback):
    """Composer's OptimizerMonitor: the norm of the gradient after clipping, as `l2_norm/grad/global`."""

    name = "optimizer_monitor"
    summary = "logs the gradient norm"
    every: int = param(10, help="steps between measurements", ge=1)
    tensors: bool = param(False, help="also log the gradient norm of each tensor, as `l2_norm/grad/TENSOR`")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem for sharded weights, for which Composer 0.32 would log the norms of one rank's shard."""
        if experiment.train.sharding != "none":
            text = "optimizer_monitor measures only one rank's shard of the gradients with train.sharding"
            yield Problem("train.callbacks", f"{text}; take gradient_norms")

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.gradients import NormMonitor

        return NormMonitor(self.every, tensors=self.tensors)


@component
class GradientNormsCallback(Callback):
    """The gradient norms of denoiser and importance estimator, after clipping, as `gradient_norm/…`."""

    name = "gradient_norms"
    summary = "logs the gradient norms of denoiser and importance estimator"
    every: int = param(10, help="steps between measurements", ge=1)

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.gradients import GradientNorms

        return GradientNorms(self.every)


@component
class RuntimeEstimatorCallback(Callback):
    """Composer's RuntimeEstimator: the remaining hours, as `time/remaining_estimate`."""

    name = "runtime_estimator"
    summary = "logs the remaining training time"
    skip: int = param(1, help="initial steps that the estimate ignores", ge=1)

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import RuntimeEstimator

        return RuntimeEstimator(skip_batches=self.skip)


@component
class EarlyStopperCallback(Callback):
    """Stops when the held-out perplexity no longer falls. Needs `train.evaluate_every`."""

    name = "early_stopper"
    summary = "early stopping on the held-out bound"
    patience: int = param(3, help="patience: evaluations without a new best bound", ge=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the training has no evaluations."""
        if not experiment.train.evaluate_every:
            yield Problem("train.callbacks", "early_stopper needs held-out evaluations; set train.evaluate_every")

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.evaluator import PatienceStopper

        return PatienceStopper(self.patience)
