"""The module of the estimator. Shapes: B sequences, L tokens, D width of the backbone."""

from __future__ import annotations

from torch import Tensor, nn


class Rarity(nn.Module):
    """Module that returns importance, float32 [B, L] in [0, 1]."""

    reads = "x"
    reads_time = False

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return the importance of tokens, int64 [B, L]; the other arguments of `EstimatorModule` are ignored."""
        ordered, place = tokens.sort(dim=1)
        alike = (ordered[:, :, None] == ordered[:, None, :]).sum(-1)
        return (1 / alike.float()).gather(1, place.argsort(dim=1))
