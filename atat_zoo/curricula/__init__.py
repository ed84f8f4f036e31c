"""Curricula: loss weights that move the training from easy to hard tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.records import Masked
    from atat_zoo.registry import Context


class CurriculumModule(Protocol):
    """What `build` returns. One that follows the loss is an `nn.Module` and answers to `Adaptive`."""

    def stage(self, progress: float) -> str:
        """Return the name of the stage at this progress, for the records."""
        ...

    def weights(self, masked: Masked, importance: Tensor, progress: float) -> Tensor:
        """Return c, float32 [B, L]: positive, with mean 1 over each row's maskable tokens.

        Args:
            masked: the step.
            importance: I in [0, 1], [B, L], detached.
            progress: share of the training that is done, in [0, 1].
        """
        ...


class Curriculum(Protocol):
    """A component of the kind curriculum."""

    name: str

    def build(self, context: Context) -> CurriculumModule:
        """Return a `CurriculumModule`."""
        ...
