"""A sampler: a combination of an order, a pace and a draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.composite import CompositeSampler
from atat_zoo.generation.samplers.order import LeftToRightOrder
from atat_zoo.generation.samplers.pace import CosinePace
from atat_zoo.generation.samplers.parts import SamplerParts
from atat_zoo.registry import component, hookimpl, param, part

if TYPE_CHECKING:
    from atat_zoo.generation.samplers.draw import Draw

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderSampler(CompositeSampler):
    """From left to right as one reads, but several tokens in a step: few at first and many at the end."""

    name = "placeholder"
    summary = "from left to right, several tokens a step, few at first"
    refs = ()

    steps: int = param(32, help="T, steps", ge=1)
    draw: Draw = part("draw", "categorical", help="from log-probabilities to a token")

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(order=LeftToRightOrder(), pace=CosinePace(steps=self.steps), draw=self.draw)


@hookimpl
def atat_zoo_sampler() -> list[type]:
    """Return the parts of this package."""
    return [PlaceholderSampler]
