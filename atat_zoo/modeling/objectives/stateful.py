"""The parts of an objective whose state follows the training."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from atat_zoo.modeling.diffusion.contracts import NoisedBatch, StatefulPart


class StatefulParts:
    """The stateful parts of an objective, and their statistics of the current step."""

    def __init__(self, **parts: Any) -> None:
        self.parts = {name: part for name, part in parts.items() if isinstance(part, StatefulPart)}
        self.totals: dict[str, Tensor] = {}

    def observe(self, noised: NoisedBatch, ce: Tensor) -> None:
        """Add the statistics of a micro-batch, with its cross-entropy [B, L]."""
        for name, part in self.parts.items():
            statistics = part.statistics(noised, ce.detach())
            self.totals[name] = self.totals[name] + statistics if name in self.totals else statistics

    def end_step(self, reduce: Callable[[Tensor], None], progress: float) -> None:
        """Update the parts with the sums over micro-batches and, by `reduce`, over ranks."""
        for name, part in self.parts.items():
            total = self.totals.pop(name, None)
            if total is not None:
                reduce(total)
                part.update(total, progress)
