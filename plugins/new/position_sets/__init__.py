"""Position sets that start at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.modeling.position_sets import PositionSets
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderPositionSets(PositionSets):
    """Predicts positions from both ends inwards; each step takes `size` of the remaining ones at each end."""

    name = "placeholder"
    summary = "sets from both ends of the free positions to the middle"

    size: int = param(2, help="number of positions from each end per set", ge=1)
    deterministic = True

    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the step, from 0, of each position to predict (`free`, bool [B, L]) and −1 elsewhere, int64 [B, L]."""
        number = free.cumsum(1) - 1
        from_end = free.sum(1, keepdim=True) - 1 - number
        return (number.minimum(from_end) // self.size).masked_fill(~free, -1)


@hookimpl
def atat_zoo_position_sets() -> list[type]:
    """Return the kinds of position sets in this package."""
    return [PlaceholderPositionSets]
