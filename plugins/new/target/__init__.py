"""A target for the importance estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import NoisedBatch

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderTarget:
    """1 − p_θ(true token) at each masked position: the probability that the denoiser gives to all other tokens."""

    name = "placeholder"
    summary = "probability that the denoiser gives to wrong tokens"
    refs = ()

    def __call__(self, masked: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target, float32 [B, L] in [0, 1], and where to train on it, from `loss` = −log p_θ in nats."""
        return 1 - loss.float().neg().exp(), masked.masked


@hookimpl
def atat_zoo_target() -> list[type]:
    """Return the targets of the importance estimator in this package."""
    return [PlaceholderTarget]
