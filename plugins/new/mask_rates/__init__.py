"""A mask-rate distribution with a linear density."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import NoiseLevels
    from atat_zoo.modeling.noise import Noise

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderRates:
    """f(r) = 1 + s (2r − 1): s > 0 favours high rates, s < 0 low ones, and s = 0 is `uniform`."""

    name = "placeholder"
    summary = "linear density of the mask rate"
    refs = ()
    finite_variance: ClassVar[bool] = True  # f has a smallest value above 0

    slope: float = param(0.5, help="s, slope: the density is 1 − s at rate 0 and 1 + s at rate 1", gt=-1, lt=1)

    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        """Return the quantile of f at u, its time, and the weight 1/(r·f(r)), float32 with the shape of u."""
        from atat_zoo.diffusion.contracts import NoiseLevels

        u = u.double()
        rate = 2 * u / (1 - self.slope + ((1 - self.slope) ** 2 + 4 * self.slope * u).sqrt())
        rate = rate.clamp(max=1)
        weight = 1 / (rate * (1 + self.slope * (2 * rate - 1)))
        return NoiseLevels(t=noise.time_at(rate.float()), rate=rate.float(), weight=weight.float())


@hookimpl
def atat_zoo_mask_rates() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderRates]
