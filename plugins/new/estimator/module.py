"""The network of the estimator. Shapes: B sequences, L tokens."""

from __future__ import annotations

from torch import Tensor, nn


class Rarity(nn.Module):
    """Network without parameters that computes importance from the number of times that a token occurs."""

    reads = "x"
    reads_time = False

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return the importance, float32 [B, L] in [0, 1], of `tokens`, int64 [B, L], ignoring the other arguments."""
        ordered, place = tokens.sort(dim=1)
        alike = (ordered[:, :, None] == ordered[:, None, :]).sum(-1)
        return (1 / alike.float()).gather(1, place.argsort(dim=1))
