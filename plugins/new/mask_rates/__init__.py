"""A mask-rate distribution with a linear density."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import NoiseLevels
    from atat_zoo.modeling.noise import Noise

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderRates:
    """Density f(r) = 1 + s (2r − 1) of mask rate r: s > 0 favours high rates, s < 0 low rates, and s = 0 neither."""

    name = "placeholder"
    summary = "mask rates with a linear density"
    refs = ()
    finite_variance: ClassVar[bool] = True  # f has a smallest value above 0

    slope: float = param(0.5, help="slope s, for a density of 1 − s at rate 0 and 1 + s at rate 1", gt=-1, lt=1)

    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        """Return the u-quantile r of f, the time at which `noise` has rate r, and 1/(r·f(r)), float32, shaped as u."""
        from atat_zoo.diffusion.contracts import NoiseLevels

        u = u.double()
        rate = 2 * u / (1 - self.slope + ((1 - self.slope) ** 2 + 4 * self.slope * u).sqrt())
        rate = rate.clamp(max=1)
        weight = 1 / (rate * (1 + self.slope * (2 * rate - 1)))
        return NoiseLevels(t=noise.time_at(rate.float()), rate=rate.float(), weight=weight.float())


@hookimpl
def atat_zoo_mask_rates() -> list[type]:
    """Return the mask-rate distributions in this package."""
    return [PlaceholderRates]
