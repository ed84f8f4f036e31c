"""The EMA of the weights, which is used to evaluate and save a model.

It replaces torch's `AveragedModel`, which also copies the buffers, and Composer's `EMA`, which has a half-life instead
of this decay.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from composer import Callback, Logger, State
from torch import nn

from atat_zoo.training.sharding import sharded_like, whole


class MovingAverage(Callback):
    """A callback that updates the EMA of the weights at each step; `swapped` exchanges weights and EMA.

    At step k, the decay is min(`decay`, (1 + k)/(10 + k)), so that the initial weights do not dominate a short run.
    """

    def __init__(self, module: nn.Module, decay: float, device: str = "cpu") -> None:
        self.decay, self.steps = decay, 0
        self.live = [p for p in module.parameters() if p.requires_grad]
        self.average = [p.detach().clone().to(device) for p in self.live]

    @torch.no_grad()
    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the EMA with the current weights."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        torch._foreach_lerp_(self.average, [p.detach() for p in self.live], 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the EMA as the model's weights in a `with` block, and restore the weights afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, average in zip(self.live, self.average, strict=True):
            weights = live.detach().clone()
            live.copy_(average)
            average.copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole EMA for the checkpoint; all ranks must call this method."""
        return {"steps": self.steps, "average": [whole(a).cpu() for a in self.average]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the EMA from a checkpoint."""
        self.steps = state["steps"]
        for mine, theirs in zip(self.average, state["average"], strict=True):
            mine.copy_(sharded_like(theirs, mine))
