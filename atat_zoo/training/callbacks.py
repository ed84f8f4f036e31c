"""Callbacks: additional measurements, and early stopping. `train.callbacks` is a list of them.

These are Composer's, under their usual names, and their numbers go to the loggers and to metrics.jsonl.
docs/how-to/composer.md says why others are absent.
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
    """The contract of a callback's specification; `package` is as in `Optimizer`."""

    def build(self) -> ComposerCallback:
        """Return Composer's callback.

        At the end of a step it runs after the update of the parts and of the moving average, and before metrics.jsonl
        is written. If it has a state, `state_dict` and `load_state_dict` carry it through a checkpoint. If it has a
        method `evaluated(perplexity, state)`, that gets the held-out perplexity, or NaN, of each evaluation on the way.
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
    """Composer's MemoryMonitor: memory of torch's allocator on a GPU, as `memory/…`; nothing on a CPU."""

    name = "memory_monitor"
    summary = "logs GPU memory"

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import MemoryMonitor

        return MemoryMonitor()


@component
class LRMonitorCallback(Callback):
    """Composer's LRMonitor: the learning rate of each group of parameters, as `lr-OPTIMIZER/group0` and so on."""

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
        """Refuse weights that are sharded: Composer 0.32 would log the norms of one rank's part."""
        if experiment.train.sharding != "none":
            text = "optimizer_monitor measures the gradients that one rank has, a part of all with train.sharding"
            yield Problem("train.callbacks", f"{text}; take gradient_norms")

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.gradients import NormMonitor

        return NormMonitor(self.every, tensors=self.tensors)


@component
class GradientNormsCallback(Callback):
    """The norms of the denoiser's and of the importance estimator's gradients, after clipping, as `gradient_norm/…`."""

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
        """Refuse a training without evaluations."""
        if not experiment.train.evaluate_every:
            yield Problem("train.callbacks", "early_stopper goes by evaluations; set train.evaluate_every")

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.evaluator import PatienceStopper

        return PatienceStopper(self.patience)
