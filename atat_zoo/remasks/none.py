"""The remask `none`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class NoRemask:
    """A token that was drawn stays."""

    name = "none"
    summary = "a token that was drawn stays"
    refs = ()
    active = False
    needs = frozenset[str]()

    def rate(self, step: Step) -> float:
        """Return 0."""
        return 0.0

    def __call__(self, step: Step) -> Tensor:
        """Return false everywhere, bool [A, L]."""
        import torch

        return torch.zeros_like(step.open)
