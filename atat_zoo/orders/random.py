"""The order `random`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class Random:
    """All orders alike, as in the reversed process of uniform masking (Sahoo et al., arXiv:2406.07524)."""

    name = "random"
    summary = "every order alike, as the reversed process of uniform masking has it"
    refs = ("arXiv:2406.07524",)
    needs = frozenset[str]()

    def __call__(self, step: Step) -> Tensor:
        """Return uniforms, float64 [A, L]."""
        import torch

        from atat_zoo.diffusion.randomness import uniform

        return uniform(step.keys("order"), step.open.shape[1], torch.float64)
