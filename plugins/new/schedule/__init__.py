"""A learning-rate schedule with inverse square root decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderSchedule:
    """A learning rate that rises linearly to its peak in w steps, and is √(w/k) times the peak in a later step k."""

    name = "placeholder"
    summary = "inverse square root decay, independent of the training length"
    refs = ("arXiv:1706.03762",)

    warmup_steps: int = param(100, help="number w of linear warmup steps", ge=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return a torch scheduler; the peak of each parameter group is its learning rate in `optimizer`."""
        from torch.optim.lr_scheduler import LambdaLR

        w = self.warmup_steps
        return LambdaLR(optimizer, lambda step: min((step + 1) / w, (w / (step + 1)) ** 0.5))

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return True: a run can resume with more steps, because no learning rate depends on their total number."""
        return True


@hookimpl
def atat_zoo_schedule() -> list[type]:
    """Return the learning-rate schedules in this package."""
    return [PlaceholderSchedule]
