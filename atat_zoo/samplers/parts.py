"""The five parts of a sampler as one object, and samplers that consist of parts."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import attrs

from atat_zoo.registry import component_base, param
from atat_zoo.samplers import Observer, Sample, Sampler, SamplerPart
from atat_zoo.samplers.draw import CategoricalDraw, Draw
from atat_zoo.samplers.order import LeftToRightOrder, Order, RandomOrder
from atat_zoo.samplers.pace import OneAtATimePace, Pace
from atat_zoo.samplers.remask import NoRemask, Remask
from atat_zoo.samplers.stop import StepsStop, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.experiment import Experiment
    from atat_zoo.samplers.revealed import Revealed


@attrs.frozen(kw_only=True)
class SamplerParts:
    """The parts of a sampler; `run` in `atat_zoo.samplers.loop` runs them."""

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

    def looks(self, importance_reads: str = "x") -> bool:
        """Return whether the distributions at all open positions are needed; a stop may fill them all.

        Importance that is read from z is known without them.
        """
        known = {"confidence", "importance"} if importance_reads == "z" else {"confidence"}
        return self.stop.active or bool(self.needs - known)

    @property
    def causal(self) -> bool:
        """See `Sampler.causal`."""
        alone = isinstance(self.order, LeftToRightOrder) and isinstance(self.pace, OneAtATimePace)
        return alone and not self.remask.active and not self.looks()

    @property
    def uncovered(self) -> str | None:
        """See `Sampler.uncovered`: the confidence in drawn tokens is read by remasks alone."""
        if self.remask.active:
            return "it hides drawn tokens again"
        return "it chooses places by the tokens that are drawn for them" if "drawn" in self.needs else None

    @property
    def deterministic(self) -> bool:
        """See `Sampler.deterministic`."""
        return all(part.deterministic for part in (self.order, self.pace, self.stop))

    def misfits(self) -> Iterator[str]:
        """Yield a sentence for each pair of parts that do not go together; `run` refuses them."""
        if self.remask.active:
            remask, pace = self.remask.name, self.pace.name
            if self.remask.needs_grid and self.pace.rates(0) is None:
                yield (
                    f"sampler: the remask {remask} follows the pace's grid of mask rates, and the pace {pace} has "
                    'none; set sampler.pace.use to one that has, such as "binomial" or "fixed", or choose another '
                    "remask"
                )
            elif self.pace.most(1) != self.pace.most(2**20):
                yield (
                    f"sampler: the remask {remask} hides tokens again, so the pace {pace} needs a number of steps at "
                    "which to end; set sampler.pace.steps, or choose a pace that has steps"
                )
        if {"rescored", "order_weights"} <= self.needs:
            yield (
                f"sampler: the order {self.order.name} and the remask {self.remask.name} each want more of the same "
                "evaluation of the model than it can give at once; choose another order or another remask"
            )

    def max_nfe(self, n: int) -> int:
        """Return the most network evaluations for a row with n open positions."""
        most = self.pace.most(n) if n else 0
        # Without a remask each evaluation fills at least one position.
        return most if self.remask.active else min(most, n)


class FillingSampler(Sampler):
    """A sampler that fills with drawn tokens or with those of a known text, in the same steps."""

    @abstractmethod
    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, observe: Observer | None, revealed: Revealed | None
    ) -> Sample:
        """Fill every mask: see `Sampler.sample`, and, with a known text, `Sampler.reveal`."""

    def sample(self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, *, observe: Observer | None = None) -> Sample:
        """See `Sampler`."""
        return self.fill(denoiser, tokens, seeds, observe, None)

    def reveal(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, revealed: Revealed, *, observe: Observer | None = None
    ) -> Sample:
        """See `Sampler`."""
        return self.fill(denoiser, tokens, seeds, observe, revealed)


class CompositeSampler(FillingSampler):
    """A sampler that consists of parts, which a subclass names."""

    @abstractmethod
    def parts(self) -> SamplerParts:
        """Return the five parts."""

    def __attrs_post_init__(self) -> None:
        """Refuse parameters that one of the parts refuses."""
        self.parts()

    @property
    def causal(self) -> bool:
        """See `Sampler.causal`."""
        return self.parts().causal

    @property
    def uses_importance(self) -> bool:
        """See `Sampler.uses_importance`."""
        return "importance" in self.parts().needs

    @property
    def uncovered(self) -> str | None:
        """See `Sampler.uncovered`."""
        return self.parts().uncovered

    @property
    def deterministic(self) -> bool:
        """See `Sampler.deterministic`."""
        return self.parts().deterministic

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield the problems of all parts."""
        parts = self.parts()
        for part in parts.all:
            if hasattr(part, "check"):
                yield from part.check(experiment)
        yield from parts.misfits()

    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, observe: Observer | None, revealed: Revealed | None
    ) -> Sample:
        """See `FillingSampler`."""
        from atat_zoo.samplers.loop import run

        return run(self.parts(), denoiser, tokens, seeds, observe=observe, revealed=revealed)


@component_base
class TemperedSampler(CompositeSampler):
    """A sampler with an exact draw at a temperature."""

    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    @property
    def draw(self) -> Draw:
        """The draw at this temperature."""
        return CategoricalDraw(temperature=self.temperature)


@component_base
class SteppedSampler(TemperedSampler):
    """A sampler with a fixed number of steps."""

    steps: int = param(64, help="T, the number of steps and the maximum of network evaluations", ge=1)


@component_base
class CappedSampler(TemperedSampler):
    """A sampler that takes as many steps as it needs, optionally up to a maximum."""

    steps: int | None = param(None, help="maximum of network evaluations; if none, one per token", ge=1)
