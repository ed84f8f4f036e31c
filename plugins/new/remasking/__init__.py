"""Remasking that only acts in the first steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.remasking import Remasking
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderRemasking(Remasking):
    """During the first steps, remasks each token that was sampled in an earlier step with a fixed probability."""

    name = "placeholder"
    summary = "remasks sampled tokens with a fixed probability during the first steps"
    refs = ()

    share: float = param(0.05, help="probability of remasking a token", ge=0, le=1)
    until: float = param(0.5, help="fraction of the maximum number of steps after which tokens are final", ge=0, le=1)

    def __call__(self, step: Step) -> Tensor:
        """Return a mask, bool [A, L], that is True for tokens to remask in A texts of L tokens."""
        drawn = step.free & ~step.open
        if step.fresh is not None:
            drawn &= ~step.fresh
        early = (step.number < self.until * step.max_steps).to(drawn.device)
        return drawn & (step.uniform("remask") < self.share) & early[:, None]


@hookimpl
def atat_zoo_remasking() -> list[type]:
    """Return the kinds of remasking in this package."""
    return [PlaceholderRemasking]
