"""Targets: what the importance estimator is trained towards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.records import Masked


class Target(Protocol):
    """A component of the kind target: a callable on tensors.

    One with a memory has `build(context) -> nn.Module` with this call, and
    answers to `atat_zoo.diffusion.records.Adaptive`.
    """

    name: str

    def __call__(self, masked: Masked, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target, float32 [B, L] in [0, 1], and where it counts, bool [B, L].

        Args:
            masked: the step.
            loss: cross-entropy in nats, detached, float32 [B, L], zero where nothing is masked.
        """
        ...
