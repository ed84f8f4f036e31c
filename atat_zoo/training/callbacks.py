"""Callbacks that log additional metrics or stop training early.

`train.callbacks` is a list of callbacks; those of Composer keep their usual names. What a callback logs goes to the
loggers and to metrics.jsonl. docs/how-to/composer.md explains why Composer's other callbacks are missing.
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
    """The interface of callback components, which may name an optional dependency (`package`, see `Optimizer`)."""

    def build(self) -> ComposerCallback:
        """Return an instance of Composer's `Callback`.

        At the end of a step, the callback runs after the components and the EMA have been updated and before
        metrics.jsonl is written. A callback with a state implements `state_dict` and `load_state_dict` for checkpoints.
        If the callback has a method `evaluated(perplexity, state)`, it is called after each evaluation that follows a
        training step, with the held-out perplexity in the objective's own order, if it has one.
        """


@component
class SpeedMonitorCallback(Callback):
    """Composer's SpeedMonitor, which logs batches, samples and tokens per second over a window as `throughput/…`."""

    name = "speed_monitor"
    summary = "logs throughput over a window of steps"
    window: int = param(10, help="window size in steps", ge=1)

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import SpeedMonitor

        return SpeedMonitor(window_size=self.window)


@component
class MemoryMonitorCallback(Callback):
    """Composer's MemoryMonitor, which logs the memory of torch's GPU allocator as `memory/…`, and nothing on a CPU."""

    name = "memory_monitor"
    summary = "logs GPU memory"

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import MemoryMonitor

        return MemoryMonitor()


@component
class LRMonitorCallback(Callback):
    """Composer's LRMonitor, which logs the learning rate of each parameter group as `lr-OPTIMIZER/group0`, …."""

    name = "lr_monitor"
    summary = "logs the learning rate of each parameter group"

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import LRMonitor

        return LRMonitor()


@component
class OptimizerMonitorCallback(Callback):
    """Composer's OptimizerMonitor, which logs the gradient norm after clipping as `l2_norm/grad/global`."""

    name = "optimizer_monitor"
    summary = "logs the gradient norm"
    every: int = param(10, help="steps between measurements", ge=1)
    tensors: bool = param(False, help="also log the gradient norm of each tensor, as `l2_norm/grad/TENSOR`")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the weights are sharded: Composer 0.32 would log the norms of only one rank's shard."""
        if experiment.train.sharding != "none":
            text = 'optimizer_monitor measures only one rank\'s shard of the gradients with train.sharding = "full"'
            yield Problem("train.callbacks", f"{text}; use gradient_norms instead")

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.gradients import NormMonitor

        return NormMonitor(self.every, tensors=self.tensors)


@component
class GradientNormsCallback(Callback):
    """A callback that logs the gradient norms of denoiser and estimator, after clipping, as `gradient_norm/…`."""

    name = "gradient_norms"
    summary = "logs the gradient norms of the denoiser and the importance estimator"
    every: int = param(10, help="steps between measurements", ge=1)

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.gradients import GradientNorms

        return GradientNorms(self.every)


@component
class RuntimeEstimatorCallback(Callback):
    """Composer's RuntimeEstimator, which logs the remaining hours as `time/remaining_estimate`."""

    name = "runtime_estimator"
    summary = "logs the remaining training time"
    skip: int = param(1, help="number of initial steps that the estimate ignores", ge=1)

    @override
    def build(self) -> ComposerCallback:
        from composer.callbacks import RuntimeEstimator

        return RuntimeEstimator(skip_batches=self.skip)


@component
class EarlyStopperCallback(Callback):
    """Early stopping when the held-out perplexity stops decreasing. Requires `train.evaluate_every`."""

    name = "early_stopper"
    summary = "early stopping on the held-out perplexity"
    patience: int = param(3, help="stop after this many evaluations without a new lowest held-out perplexity", ge=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the experiment lacks evaluations during training."""
        if not experiment.train.evaluate_every:
            yield Problem("train.callbacks", "early_stopper needs held-out evaluations; set train.evaluate_every")

    @override
    def build(self) -> ComposerCallback:
        from atat_zoo.training.evaluator import PatienceStopper

        return PatienceStopper(self.patience)
