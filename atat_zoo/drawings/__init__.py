"""Drawings: masking probabilities to a mask, with marginals exactly p."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Drawing(Protocol):
    """A component of the kind drawing: a callable on tensors."""

    name: str

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return which tokens are masked, bool [B, L].

        Args:
            p: masking probabilities, float32 [B, L].
            keys: one counter-based key a row, int64 [B] (`diffusion.randomness`).
        """
        ...
