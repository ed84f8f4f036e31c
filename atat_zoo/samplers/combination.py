"""The sampler `combination`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, part

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.records import Denoiser
    from atat_zoo.draws import Draw
    from atat_zoo.orders import Order
    from atat_zoo.paces import Pace
    from atat_zoo.remasks import Remask
    from atat_zoo.samplers import Sample
    from atat_zoo.samplers.parts import Parts
    from atat_zoo.stops import Stop


@component
class Combination:
    """Any order, pace, remask, stop and draw, each named in its own table; the defaults are `ancestral`."""

    name = "combination"
    summary = "any order, pace, remask, stop and draw, each named by itself"
    refs = ()

    order: Order = part("order", "random", help="which masked position comes first")
    pace: Pace = part("pace", "binomial", help="how many positions are unmasked in a step")
    remask: Remask = part("remask", "none", help="which drawn tokens are masked again")
    stop: Stop = part("stop", "steps", help="when the rest is filled in one draw")
    draw: Draw = part("draw", "categorical", help="from log-probabilities to a token")

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.parts import Parts

        return Parts(order=self.order, pace=self.pace, remask=self.remask, stop=self.stop, draw=self.draw)

    def sample(
        self,
        denoiser: Denoiser,
        tokens: Tensor,
        seeds: Tensor,
        *,
        mask_id: int,
        importance: Callable[[Tensor, Tensor], Tensor] | None = None,
        reads_time: bool = False,
        trace: bool = False,
    ) -> Sample:
        """Fill every mask; see `Sampler.sample`."""
        from atat_zoo.samplers.loop import run

        return run(
            self.parts(),
            denoiser,
            tokens,
            seeds,
            mask_id=mask_id,
            importance=importance,
            reads_time=reads_time,
            trace=trace,
        )
