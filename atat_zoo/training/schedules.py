"""Schedules: the learning rate from step to step, as a share of the optimizer's peak. Parameters: `[schedule]`.

Every schedule of ours begins with a linear warm-up. What follows is a function of the share of the remaining steps that
are done.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class Schedule(Protocol):
    """What a schedule's specification implements."""

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return torch's scheduler, stepped after each optimizer step.

        Args:
            optimizer: the learning rate of each of its groups is the peak.
            steps: optimizer steps of the training.
        """
        ...


def after_warmup(optimizer: Optimizer, warmup_steps: int, steps: int, share: Callable[[float], float]) -> LRScheduler:
    """Return the schedule that rises to the peak in `warmup_steps`, then is `share(done)` of it.

    Args:
        optimizer: as `Schedule.build` takes it.
        warmup_steps: steps of the rise; the first has 1/warmup_steps of the peak.
        steps: of the training, those of the warm-up included.
        share: from the share of the steps after the warm-up that are done, in [0, 1], to the share of the peak.
    """
    from torch.optim.lr_scheduler import LambdaLR

    def rate(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return share(min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps)))

    return LambdaLR(optimizer, rate)


def _falling(final_rate: float, left: float) -> float:
    """Return the share of the peak when `left`, from 1 to 0, is left of the way down to `final_rate`."""
    return final_rate + (1 - final_rate) * left


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


_WARMUP = "steps of linear warm-up"
_FINAL = "share of the peak at the end"


@component
class ConstantSchedule:
    """The peak, after the warm-up."""

    name = "constant"
    summary = "the peak until the end"
    refs = ()
    warmup_steps: int = param(100, help=_WARMUP, ge=0)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """See `Schedule`."""
        return after_warmup(optimizer, self.warmup_steps, steps, lambda done: 1.0)


@component
class CosineSchedule:
    """Half a cosine from the peak to the final rate."""

    name = "cosine"
    summary = "half a cosine down to the final rate"
    refs = ("arXiv:1608.03983",)
    warmup_steps: int = param(100, help=_WARMUP, ge=0)
    final_rate: float = param(0.0, help=_FINAL, ge=0, le=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """See `Schedule`."""
        return after_warmup(
            optimizer, self.warmup_steps, steps, lambda done: _falling(self.final_rate, _half_cosine(done))
        )


@component
class LinearSchedule:
    """A straight line from the peak to the final rate."""

    name = "linear"
    summary = "a straight line down to the final rate"
    refs = ()
    warmup_steps: int = param(100, help=_WARMUP, ge=0)
    final_rate: float = param(0.0, help=_FINAL, ge=0, le=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """See `Schedule`."""
        return after_warmup(optimizer, self.warmup_steps, steps, lambda done: _falling(self.final_rate, 1 - done))


@component
class WarmupStableDecaySchedule:
    """The peak for most of the training, then a straight line to the final rate (Hu et al., 2024)."""

    name = "wsd"
    summary = "warm-up, then the peak, then a short linear decay"
    refs = ("arXiv:2404.06395",)
    warmup_steps: int = param(100, help=_WARMUP, ge=0)
    decay: float = param(0.2, help="share of the steps after the warm-up in which the rate falls", gt=0, le=1)
    final_rate: float = param(0.0, help=_FINAL, ge=0, le=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """See `Schedule`."""
        return after_warmup(
            optimizer,
            self.warmup_steps,
            steps,
            lambda done: _falling(self.final_rate, min(1.0, (1 - done) / self.decay)),
        )


@component
class RestartsSchedule:
    """Half a cosine again and again, each from the peak (SGDR, Loshchilov & Hutter, 2017)."""

    name = "restarts"
    summary = "cosine with warm restarts"
    refs = ("arXiv:1608.03983",)
    warmup_steps: int = param(100, help=_WARMUP, ge=0)
    cycles: int = param(4, help="half cosines after the warm-up, all of one length", ge=1)
    final_rate: float = param(0.0, help="share of the peak at the end of each cycle", ge=0, le=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """See `Schedule`."""

        def share(done: float) -> float:
            finished = min(int(done * self.cycles), self.cycles - 1)
            return _falling(self.final_rate, _half_cosine(done * self.cycles - finished))

        return after_warmup(optimizer, self.warmup_steps, steps, share)
