"""The sampler `uncertainty_guided`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atat_zoo.registry import component, param, part
from atat_zoo.samplers.parts import fill

if TYPE_CHECKING:
    from atat_zoo.samplers.parts import Parts
    from atat_zoo.uncertainty import Uncertainty


@component
class UncertaintyGuided:
    """Order by uncertainty × importance, more positions a step the surer the model is, an early end.

    The order is `uncertainty`, the pace `adaptive`, the stop `uncertainty`, all by the same metric. Most
    certain first is the default, because most uncertain first has no published evidence and writes the worst
    predictions while least is known.
    """

    name = "uncertainty_guided"
    summary = "order by uncertainty × importance, a pace that adapts, an end when little is uncertain"
    refs = ("ATAT",)

    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")
    first: Literal["most_certain", "most_uncertain"] = param("most_certain", help="which position comes first")
    importance: bool = param(True, help="multiply the uncertainty by the importance of the draft's token")
    min_steps: int = param(10, help="steps for a text that is certain throughout", ge=1)
    max_steps: int = param(100, help="steps for a text that is uncertain throughout, and the most evaluations", ge=1)
    threshold: float = param(0.3, help="mean uncertainty below which the rest is filled; 0 never stops", ge=0, le=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def __attrs_post_init__(self) -> None:
        """Refuse bounds in the wrong order."""
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps must be at least min_steps, {self.min_steps}, not {self.max_steps}")

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.draws.categorical import Categorical
        from atat_zoo.orders.uncertainty import UncertaintyOrder
        from atat_zoo.paces.adaptive import Adaptive
        from atat_zoo.remasks.none import NoRemask
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.stops.uncertainty import UncertaintyStop

        metric = self.uncertainty
        return Parts(
            order=UncertaintyOrder(uncertainty=metric, first=self.first, importance=self.importance),
            pace=Adaptive(min_steps=self.min_steps, max_steps=self.max_steps, uncertainty=metric),
            remask=NoRemask(),
            stop=UncertaintyStop(threshold=self.threshold, uncertainty=metric),
            draw=Categorical(temperature=self.temperature),
        )

    sample = fill
