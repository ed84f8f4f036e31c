"""The four choices and the draw, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from atat_zoo.diffusion.records import Denoiser
    from atat_zoo.experiment import Experiment
    from atat_zoo.samplers import Sample
    from atat_zoo.samplers.draw import Draw
    from atat_zoo.samplers.order import Order
    from atat_zoo.samplers.pace import Pace
    from atat_zoo.samplers.remask import Remask
    from atat_zoo.samplers.stop import Stop


@attrs.frozen(kw_only=True)
class Parts:
    """What a sampler is made of; `run` in `atat_zoo.samplers.loop` carries it out."""

    order: Order
    pace: Pace
    remask: Remask
    stop: Stop
    draw: Draw

    @property
    def needs(self) -> frozenset[str]:
        """What any of the parts reads of a step."""
        return frozenset().union(*(part.needs for part in (self.order, self.pace, self.remask, self.stop, self.draw)))

    @property
    def looks(self) -> bool:
        """Whether the distributions at all open positions are needed, not only at the chosen ones.

        A stop may fill them all, whatever it goes by.
        """
        return self.stop.active or bool(self.needs - {"confidence"})

    @property
    def causal(self) -> bool:
        """Whether the leftmost mask is always filled alone, and the denoiser asked for nothing else."""
        from atat_zoo.samplers.order import LeftToRightOrder
        from atat_zoo.samplers.pace import OneAtATimePace

        alone = isinstance(self.order, LeftToRightOrder) and isinstance(self.pace, OneAtATimePace)
        return alone and not self.remask.active and not self.looks

    def misfits(self) -> Iterator[str]:
        """Yield a sentence for each pair of parts that do not go together."""
        if self.remask.active:
            remask, pace = self.remask.name, self.pace.name
            if getattr(self.remask, "needs_grid", False) and self.pace.rates(0) is None:
                yield (
                    f"the remask {remask} follows the pace's grid of mask rates, and the pace {pace} has none; set "
                    'sampler.pace.use to one that has, such as "binomial" or "fixed", or choose another remask'
                )
            elif self.pace.most(1) != self.pace.most(2**20):
                yield (
                    f"the remask {remask} hides tokens again, so the pace {pace} needs a number of steps at which to "
                    "end; set sampler.pace.steps, or choose a pace that has steps"
                )
        if {"rescored", "order_weights"} <= self.needs:
            yield (
                f"the order {self.order.name} and the remask {self.remask.name} each want more of the same evaluation "
                "of the model than it can give at once; choose another order or another remask"
            )

    def refuse_misfits(self) -> None:
        """Raise `UserError` with what `misfits` finds."""
        found = list(self.misfits())
        if found:
            raise UserError("\n".join(f"sampler: {sentence}" for sentence in found))

    def max_nfe(self, n: int) -> int:
        """Return the most network evaluations for a row with n open positions.

        Without remasking each evaluation fills at least one position, so n is a bound as well.
        """
        if n == 0:
            return 0
        most = self.pace.most(n)
        return most if self.remask.active else min(most, n)


class Combined(Protocol):
    """A sampler that is its parts, which all of ours are."""

    def parts(self) -> Parts:
        """Return the four choices and the draw."""
        ...


def check_parts(sampler: Combined, experiment: Experiment) -> Iterator[str]:
    """Yield what does not fit any of the parts: the method `check` of a sampler that is its parts."""
    parts = sampler.parts()
    for part in (parts.order, parts.pace, parts.remask, parts.stop, parts.draw):
        if hasattr(part, "check"):
            yield from part.check(experiment)
    yield from (f"sampler: {sentence}" for sentence in parts.misfits())


def fill(
    sampler: Combined,
    denoiser: Denoiser,
    tokens: Tensor,
    seeds: Tensor,
    *,
    mask_id: int,
    importance: Callable[[Tensor, Tensor], Tensor] | None = None,
    reads_time: bool = False,
    observe: Callable[[dict[str, Any]], None] | None = None,
) -> Sample:
    """Fill every mask: the method `sample` of a sampler that is its parts; see `Sampler.sample`."""
    from atat_zoo.samplers.loop import run

    return run(
        sampler.parts(),
        denoiser,
        tokens,
        seeds,
        mask_id=mask_id,
        importance=importance,
        reads_time=reads_time,
        observe=observe,
    )
