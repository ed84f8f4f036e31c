"""Masking strategies: importance and a rate to the probability of masking each token.

With r a row's rate and n its maskable tokens, every strategy keeps

    (a) mean of p over maskable tokens = r, per row; r = 0 and r = 1 exactly
    (b) p_i does not fall when I_i rises (the inverse strategy: does not rise)
    (c) p_i does not fall when r rises, so masks drawn with one uniform per token are nested
    (d) temperature → ∞ is the uniform strategy; temperature → 0 a threshold, ties sharing the rest
    (e) tokens that are not maskable have p = 0 and do not count
    (f) equal importance gives equal p; permuting tokens permutes p

`atat_zoo.testing` holds any strategy, ours or a plugin's, to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Masking(Protocol):
    """A component of the kind masking, or what its `build(context)` returns.

    One with a memory has `build(context) -> nn.Module` with this method, and
    implements `atat_zoo.diffusion.contracts.StatefulPart`.
    """

    name: str

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L], whatever the precision of the input.

        Args:
            importance: I in [0, 1], [B, L], detached.
            rate: r in [0, 1], [B].
            maskable: bool [B, L].
        """
        ...
