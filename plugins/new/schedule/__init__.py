"""A learning-rate schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderSchedule:
    """Rises linearly for w steps, then decays with the inverse square root of the step: √(w/k)."""

    name = "placeholder"
    summary = "inverse square root decay, independent of the training length"
    refs = ("arXiv:1706.03762",)

    warmup_steps: int = param(100, help="w, linear warmup steps", ge=1)

    def build(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Return torch's scheduler; the learning rate of each parameter group is the peak."""
        from torch.optim.lr_scheduler import LambdaLR

        w = self.warmup_steps
        return LambdaLR(optimizer, lambda step: min((step + 1) / w, (w / (step + 1)) ** 0.5))

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return whether a run of `steps` can be extended to `more` after `done` steps: always."""
        return True


@hookimpl
def atat_zoo_schedule() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderSchedule]
