"""Learning-rate schedules, with parameters in `[schedule]`; each gives the rate at a step as a fraction of the peak.

All built-in schedules begin with a linear warmup, followed by a function of the completed fraction of the remaining
steps.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.registry import component, component_base, param

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class Schedule(Protocol):
    """The interface of schedule components."""

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return a torch scheduler for `steps` steps; the groups of `optimizer` have their peak learning rates."""

    # A run can resume with a different number of steps only if its schedule has `extends`; see resumption.py.


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


@component_base
class WarmedSchedule(Schedule):
    """A schedule with linear warmup over `warmup_steps`, from 1/warmup_steps of the peak; `share` defines the rest."""

    warmup_steps: int = param(100, help="number of linear warmup steps", ge=0)

    @abstractmethod
    def share(self, done: float) -> float:
        """Return the fraction of the peak, in [0, 1], after a fraction `done`, in [0, 1], of the steps after warmup."""

    def rate(self, step: int, steps: int) -> float:
        """Return the fraction of the peak at step `step` of `steps`, including warmup."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.share(min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps)))

    @override
    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        from torch.optim.lr_scheduler import LambdaLR

        return LambdaLR(optimizer, lambda step: self.rate(step, steps))

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return whether the first `done` + 1 rates are the same when training for `steps` and for `more` steps."""
        return all(self.rate(step, steps) == self.rate(step, more) for step in range(done + 1))


@component
class ConstantSchedule(WarmedSchedule):
    """A constant learning rate after warmup."""

    name = "constant"
    summary = "constant learning rate after warmup"

    @override
    def share(self, done: float) -> float:
        return 1.0


@component_base
class FallingSchedule(WarmedSchedule):
    """A schedule that decays from the peak to a final rate."""

    min_lr_ratio: float = param(0.0, help="final learning rate as a fraction of the peak", ge=0, le=1)

    @abstractmethod
    def left(self, done: float) -> float:
        """Return the remaining fraction of the decay (1 to 0) after a fraction `done` of the steps after warmup."""

    @override
    def share(self, done: float) -> float:
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * self.left(done)


@component
class CosineSchedule(FallingSchedule):
    """Cosine decay from the peak to the final rate."""

    name = "cosine"
    summary = "cosine decay"
    refs = ("arXiv:1608.03983",)

    @override
    def left(self, done: float) -> float:
        return _half_cosine(done)


@component
class LinearSchedule(FallingSchedule):
    """Linear decay from the peak to the final rate."""

    name = "linear"
    summary = "linear decay"

    @override
    def left(self, done: float) -> float:
        return 1 - done


@component
class WarmupStableDecaySchedule(FallingSchedule):
    """A constant rate after warmup, the peak, followed by linear decay to the final rate (Hu et al., 2024)."""

    name = "wsd"
    summary = "WSD: warmup, constant rate, linear decay"
    refs = ("arXiv:2404.06395",)
    decay: float = param(0.2, help="fraction of the steps after warmup in which the rate decays", gt=0, le=1)

    @override
    def left(self, done: float) -> float:
        return min(1.0, (1 - done) / self.decay)


@component
class RestartsSchedule(FallingSchedule):
    """Repeated cosine decays, each from the peak to the final rate (SGDR, Loshchilov & Hutter, 2017)."""

    name = "restarts"
    summary = "cosine decay with warm restarts"
    refs = ("arXiv:1608.03983",)
    cycles: int = param(4, help="number of cosine cycles of equal length after warmup", ge=1)

    @override
    def left(self, done: float) -> float:
        return _half_cosine(done * self.cycles - min(int(done * self.cycles), self.cycles - 1))
