"""Stops: when all that is still masked is filled in one draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


class Stop(Protocol):
    """A component of the kind stop: a callable on a step, asked after the network and before the draw.

    Attributes:
        active: False for one that never stops early: it is not asked.
        needs: "log_probs", "history" or nothing.
    """

    name: str

    @property
    def active(self) -> bool:
        """Whether it ever stops early."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """What the loop must fill in."""
        ...

    def __call__(self, step: Step) -> Tensor:
        """Return which rows are finished in this step, bool [A]."""
        ...
