"""The stop `steps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class Steps:
    """Never early: the sampler runs until the pace has unmasked everything."""

    name = "steps"
    summary = "runs until the pace has unmasked everything"
    refs = ()
    active = False
    needs = frozenset[str]()

    def __call__(self, step: Step) -> Tensor:
        """Return false for every row, bool [A]."""
        import torch

        return torch.zeros_like(step.rows, dtype=torch.bool)
