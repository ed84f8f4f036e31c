"""The Composer callback that logs the norm of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from composer import Callback

if TYPE_CHECKING:
    from composer import Logger, State


class WeightMonitor(Callback):
    """Callback without state that logs the norm of the weights after every `every`-th training step."""

    def __init__(self, every: int) -> None:
        self.every = every

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the norm if the number of completed steps is divisible by `every`."""
        if int(state.timestamp.batch) % self.every == 0:
            norms = [p.detach().float().norm() for p in state.model.parameters()]
            logger.log_metrics({"weights/norm": float(torch.stack(norms).norm())})
