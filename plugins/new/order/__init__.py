"""A decoding order that starts in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atat_zoo.generation.samplers.order import Order
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderOrder(Order):
    """Decodes the masked position nearest to the middle of the text first, or the farthest one."""

    name = "placeholder"
    summary = "from the middle outwards, or from both ends inwards"
    refs = ()
    deterministic = True

    first: Literal["middle", "ends"] = param("middle", help="whether the middle or the ends come first")

    def __call__(self, step: Step) -> Tensor:
        """Return a score per position, float64 [A, L]; the highest comes first."""
        import torch

        rows, length = step.open.shape
        place = torch.arange(length, dtype=torch.float64, device=step.open.device)
        distance = (place - (length - 1) / 2).abs().expand(rows, length)
        return distance if self.first == "ends" else -distance


@hookimpl
def atat_zoo_order() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderOrder]
