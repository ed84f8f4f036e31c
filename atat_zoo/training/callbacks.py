"""Callbacks: what else is measured, or stops a training. `train.callbacks` is a list of them.

Composer's, by the names that its users know, and those of plugins. What they log goes to the loggers, and into the
lines of metrics.jsonl. Left out are Composer's NaNMonitor, since every training stops by itself at a loss that is not
finite, and its EarlyStopper, which watches Composer's evaluation loop where ours computes the bound: `early_stopper`
here watches that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from composer import Callback as ComposerCallback

    from atat_zoo.experiment import Experiment


class Callback(Protocol):
    """What a callback's specification implements; `package` as an optimizer's."""

    def build(self) -> ComposerCallback:
        """Return Composer's callback.

        At the end of a step it runs after the parts and the moving average have taken in the step, and before
        metrics.jsonl is written. If it has a state, `state_dict` and `load_state_dict` carry it through a checkpoint.
        """
        ...


@component
class SpeedMonitorCallback:
    """Composer's SpeedMonitor: batches, samples and tokens per second over a window of steps, as `throughput/…`."""

    name = "speed_monitor"
    summary = "throughput over a window of steps"
    refs = ()
    window: int = param(10, help="steps in the window", ge=1)

    def build(self) -> ComposerCallback:
        """See `Callback`."""
        from composer.callbacks import SpeedMonitor

        return SpeedMonitor(window_size=self.window)


@component
class MemoryMonitorCallback:
    """Composer's MemoryMonitor: what torch's allocator holds on a GPU, as `memory/…`; nothing on a CPU."""

    name = "memory_monitor"
    summary = "memory on a GPU"
    refs = ()

    def build(self) -> ComposerCallback:
        """See `Callback`."""
        from composer.callbacks import MemoryMonitor

        return MemoryMonitor()


@component
class LRMonitorCallback:
    """Composer's LRMonitor: the learning rate of each group of parameters, as `lr-OPTIMIZER/group0` and so on."""

    name = "lr_monitor"
    summary = "learning rate of each group of parameters"
    refs = ()

    def build(self) -> ComposerCallback:
        """See `Callback`."""
        from composer.callbacks import LRMonitor

        return LRMonitor()


@component
class OptimizerMonitorCallback:
    """Composer's OptimizerMonitor: the norms of the gradients after clipping, `l2_norm/grad/…`, of each and of all."""

    name = "optimizer_monitor"
    summary = "norms of the gradients"
    refs = ()
    every: int = param(10, help="steps between two measurements", ge=1)

    def build(self) -> ComposerCallback:
        """See `Callback`."""
        from composer.callbacks import OptimizerMonitor

        return OptimizerMonitor(log_optimizer_metrics=False, batch_log_interval=self.every)


@component
class RuntimeEstimatorCallback:
    """Composer's RuntimeEstimator: hours that are left, as `time/remaining_estimate`."""

    name = "runtime_estimator"
    summary = "time until the training ends"
    refs = ()
    skip: int = param(1, help="steps at the beginning that are not typical", ge=1)

    def build(self) -> ComposerCallback:
        """See `Callback`."""
        from composer.callbacks import RuntimeEstimator

        return RuntimeEstimator(skip_batches=self.skip)


@component
class EarlyStopperCallback:
    """Stops when the held-out perplexity no longer falls. Needs `train.evaluate_every`."""

    name = "early_stopper"
    summary = "stops when the held-out bound no longer falls"
    refs = ()
    patience: int = param(3, help="evaluations without a new best bound before it stops", ge=1)

    def check(self, experiment: Experiment) -> list[str]:
        """Refuse a training without evaluations."""
        if experiment.train.evaluate_every:
            return []
        return ["train.callbacks: early_stopper goes by evaluations; set train.evaluate_every"]

    def build(self) -> ComposerCallback:
        """See `Callback`."""
        from atat_zoo.training.lifecycle import PatienceStopper

        return PatienceStopper(self.patience)
