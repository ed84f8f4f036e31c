"""A learning-rate schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderSchedule:
    """Rises linearly to the peak for w steps, and then decays to √(w/k) times the peak in step k."""

    name = "placeholder"
    summary = "inverse square root decay, independent of the training length"
    refs = ("arXiv:1706.03762",)

    warmup_steps: int = param(100, help="number w of linear warmup steps", ge=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return torch's scheduler, whose peak is the learning rate of each parameter group."""
        from torch.optim.lr_scheduler import LambdaLR

        w = self.warmup_steps
        return LambdaLR(optimizer, lambda step: min((step + 1) / w, (w / (step + 1)) ** 0.5))

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return True, because a run of `steps` can always be extended to `more` after `done` steps."""
        return True


@hookimpl
def atat_zoo_schedule() -> list[type]:
    """Return the components in this package."""
    return [PlaceholderSchedule]
