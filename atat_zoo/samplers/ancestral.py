"""The sampler `ancestral`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param
from atat_zoo.samplers.parts import fill

if TYPE_CHECKING:
    from atat_zoo.samplers.parts import Parts


@component
class Ancestral:
    """The reversed process of uniform masking on a grid of times (Sahoo et al., arXiv:2406.07524).

    Random order, binomial pace with a mask rate that falls evenly. How many tokens a step unmasks is drawn
    before the network is asked, so a step that unmasks none costs nothing; the published variants with and
    without a cache have the same distribution.
    """

    name = "ancestral"
    summary = "the reversed process of uniform masking, on a grid of times"
    refs = ("arXiv:2406.07524",)

    steps: int = param(64, help="T, steps of the time grid, and the most network evaluations", ge=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.draws.categorical import Categorical
        from atat_zoo.noise.linear import Linear
        from atat_zoo.orders.random import Random
        from atat_zoo.paces.binomial import Binomial
        from atat_zoo.remasks.none import NoRemask
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.stops.steps import Steps

        return Parts(
            order=Random(),
            pace=Binomial(steps=self.steps, noise=Linear()),
            remask=NoRemask(),
            stop=Steps(),
            draw=Categorical(temperature=self.temperature),
        )

    sample = fill
