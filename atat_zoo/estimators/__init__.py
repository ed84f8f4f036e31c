"""Importance estimators: which tokens of a text are hard to predict.

An estimator is a specification with `build(context) -> nn.Module`. The module
maps clean tokens to importance in [0, 1]. It never holds the backbone's
embedding: that comes in detached, so the backbone is not trained through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.registry import Context


class EstimatorModule(Protocol):
    """What `build` returns: an `nn.Module` with this `forward`."""

    def __call__(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance, float32 [B, L] in [0, 1].

        Args:
            tokens: clean tokens, int64 [B, L].
            embedded: the backbone's embedding of them, detached, [B, L, D].
            t: diffusion time [B], or None for an estimator that does not read it.
            maskable: bool [B, L]; importance elsewhere is not used.
        """
        ...


class Estimator(Protocol):
    """A component of the kind estimator."""

    name: str

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule`; one without parameters is not trained."""
        ...
