"""A decoding order that starts in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atat_zoo.generation.samplers.order import Order
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderOrder(Order):
    """Decodes positions from the middle of the text outwards or, with `first` = "ends", from both ends inwards."""

    name = "placeholder"
    summary = "decodes from the middle outwards, or from both ends inwards"
    refs = ()
    deterministic = True

    first: Literal["middle", "ends"] = param("middle", help="part of the text to decode first: the middle or the ends")

    def __call__(self, step: Step) -> Tensor:
        """Return a score for each of L positions in A texts, float64 [A, L]; the highest is decoded first."""
        import torch

        rows, length = step.open.shape
        place = torch.arange(length, dtype=torch.float64, device=step.open.device)
        distance = (place - (length - 1) / 2).abs().expand(rows, length)
        return distance if self.first == "ends" else -distance


@hookimpl
def atat_zoo_order() -> list[type]:
    """Return the decoding orders in this package."""
    return [PlaceholderOrder]
