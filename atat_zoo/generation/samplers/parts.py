"""The five parts of a sampler as one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from atat_zoo.generation.samplers import SamplerPart
from atat_zoo.generation.samplers.draw import CategoricalDraw, Draw
from atat_zoo.generation.samplers.order import LeftToRightOrder, Order, RandomOrder
from atat_zoo.generation.samplers.pace import OneAtATimePace, Pace
from atat_zoo.generation.samplers.remask import NoRemask, Remask
from atat_zoo.generation.samplers.stop import StepsStop, Stop
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen(kw_only=True)
class SamplerParts:
    """The parts of a sampler; `run` in `atat_zoo.generation.samplers.loop` runs them."""

    pace: Pace
    order: Order = attrs.field(factory=RandomOrder)
    remask: Remask = attrs.field(factory=NoRemask)
    stop: Stop = attrs.field(factory=StepsStop)
    draw: Draw = attrs.field(factory=CategoricalDraw)

    @property
    def all(self) -> tuple[SamplerPart, ...]:
        """The five parts."""
        return self.order, self.pace, self.remask, self.stop, self.draw

    @property
    def needs(self) -> frozenset[str]:
        """The needs of all parts together."""
        return frozenset().union(*(part.needs for part in self.all))

    def needs_all_logits(self, importance_reads: str = "x") -> bool:
        """Return whether the distributions at all open positions are needed; a stop may fill them all."""
        # Importance that is read from z is known without them.
        free = {"confidence", "importance"} if importance_reads == "z" else {"confidence"}
        return self.stop.active or bool(self.needs - free)

    @property
    def causal(self) -> bool:
        """Whether they fill the leftmost mask, one at a time, and ask for nothing else."""
        alone = isinstance(self.order, LeftToRightOrder) and isinstance(self.pace, OneAtATimePace)
        return alone and not self.remask.active and not self.needs_all_logits()

    def incompatibilities(self) -> Iterator[Problem]:
        """Yield each pair of parts that do not go together; `run` refuses them."""
        if self.remask.active:
            remask, pace = self.remask.name, self.pace.name
            if self.remask.needs_grid and self.pace.rates(0) is None:
                yield Problem(
                    "sampler",
                    f"the remask {remask} follows the pace's grid of mask rates, and the pace {pace} has none; set "
                    'sampler.pace.use to one that has, such as "binomial" or "fixed", or choose another remask',
                )
            elif self.pace.most(1) != self.pace.most(2**20):
                yield Problem(
                    "sampler",
                    f"the remask {remask} masks tokens again, so the pace {pace} needs a number of steps at which to "
                    "end; set sampler.pace.steps, or choose a pace that has steps",
                )
        if {"rescored", "order_weights"} <= self.needs:
            both = f"the order {self.order.name} and the remask {self.remask.name} each want more of the same "
            end = "evaluation of the model than it can give at once; choose another order or another remask"
            yield Problem("sampler", both + end)

    def max_nfe(self, n: int) -> int:
        """Return the most network evaluations for a row with n open positions."""
        most = self.pace.most(n) if n else 0
        return most if self.remask.active else min(most, n)  # without a remask each fills at least one position
