"""The pace `fixed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class Fixed:
    """The same number in every step: after step k of T, ⌊n (k + 1)/T⌋ of n are unmasked.

    A row with fewer positions than steps takes one at a time and sits out the other steps, so a T of at least
    L is one token at a time.
    """

    name = "fixed"
    summary = "the same number of positions in every step"
    refs = ("arXiv:2406.04329",)
    needs = frozenset[str]()

    steps: int = param(64, help="T, steps; at least as many as positions means one at a time", ge=1)

    def most(self, n: int) -> int:
        """Return T."""
        return self.steps

    def rates(self, number: int) -> tuple[float, float]:
        """Return 1 − k/T and 1 − (k + 1)/T."""
        return 1 - number / self.steps, 1 - (number + 1) / self.steps

    def take(self, step: Step) -> Tensor:
        """Return what brings each row to its share, int64 [A] on the CPU."""
        left: Tensor = step.total - step.total * (step.number + 1) // self.steps
        return step.remaining - left
