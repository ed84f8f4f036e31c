"""A squared-cosine noise schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderNoise:
    """α(t) = cos²(πt/2), which changes slowly at both ends and gives a mask rate of sin²(πt/2)."""

    name = "placeholder"
    summary = "α = cos²(πt/2), which changes slowly at both ends"
    refs = ("arXiv:2102.09672",)
    complete: ClassVar[bool] = True

    def alpha(self, t: Tensor) -> Tensor:
        """Return α(t) = cos²(πt/2), the probability that a token is not masked at time t, for t of any shape."""
        return t.mul(math.pi / 2).cos().square()

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'(t)/(1 − α(t)) = π cot(πt/2), the weight of the cross-entropy in the NELBO, for t of any shape."""
        return t.mul(math.pi / 2).tan().reciprocal().mul(math.pi)

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = (2/π) arcsin(√rate), the time at which the mask rate 1 − α(t) is `rate`."""
        return rate.clamp(0, 1).sqrt().asin().mul(2 / math.pi).clamp(0, 1)


@hookimpl
def atat_zoo_noise() -> list[type]:
    """Return the noise schedules in this package."""
    return [PlaceholderNoise]
