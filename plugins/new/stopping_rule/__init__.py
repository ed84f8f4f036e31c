"""A stopping rule for the last few masked positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.stopping_rule import StoppingRule
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderStoppingRule(StoppingRule):
    """Fills all masked positions of a text in one step as soon as there are at most `left` of them."""

    name = "placeholder"
    summary = "stops when few masked positions are left"
    refs = ()
    deterministic = True

    left: int = param(
        2, help="number of masked positions to sample at once; with 0, generation never stops early", ge=0
    )

    def __call__(self, step: Step) -> Tensor:
        """Return a mask, bool [A], that is True for those of A texts whose masks are all to be filled in this step."""
        return step.open.sum(1) <= self.left


@hookimpl
def atat_zoo_stopping_rule() -> list[type]:
    """Return the stopping rules in this package."""
    return [PlaceholderStoppingRule]
