"""Paces: how many masked positions are unmasked in a step, and in how many steps at most.

In the last step that `most` allows the loop fills everything, so no pace needs
a clean-up call, and none can run for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


class Pace(Protocol):
    """A component of the kind pace.

    One whose `needs` is empty decides on the CPU before the network is asked:
    rows that get nothing sit out the step and cost nothing. One that needs
    "log_probs" or "history" decides after, and finds `step.ranking` filled in.
    """

    name: str

    @property
    def needs(self) -> frozenset[str]:
        """What the loop must fill in."""
        ...

    def most(self, n: int) -> int:
        """Return the most steps for a row with n ≥ 1 open positions; at least 1, never falling in n."""
        ...

    def rates(self, number: int) -> tuple[float, float] | None:
        """Return the expected share of masked tokens before and after step `number`, or None without a grid."""
        ...

    def take(self, step: Step) -> Tensor:
        """Return how many positions are unmasked, or which.

        Returns:
            int64 [A]: that many are taken in the order (on the CPU if `needs` is empty). Or, for a rule
            about single positions, bool [A, L]: these. A pace that needs something takes at least one a row.
        """
        ...


@runtime_checkable
class Timed(Protocol):
    """A pace that has a diffusion time of its own for a denoiser that reads it.

    Without this the time follows from the share of masked tokens, so the
    denoiser is a function of z alone.
    """

    def times(self, step: Step) -> Tensor:
        """Return t, float32 [A] in (0, 1]."""
        ...
