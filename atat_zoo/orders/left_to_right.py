"""The order `left_to_right`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class LeftToRight:
    """The leftmost masked position first, as an autoregressive model writes."""

    name = "left_to_right"
    summary = "the leftmost masked position first"
    refs = ()
    needs = frozenset[str]()

    def __call__(self, step: Step) -> Tensor:
        """Return minus the position, float64 [A, L]."""
        import torch

        rows, length = step.open.shape
        return torch.arange(0, -length, -1, device=step.open.device, dtype=torch.float64).expand(rows, length)
