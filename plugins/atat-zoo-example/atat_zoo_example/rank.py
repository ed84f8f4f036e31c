"""The masking strategy `rank`, which masks tokens by the rank of their importance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


@component
class Rank:
    """p_i = min(1, λ exp(ρ_i / T)) with temperature T and ρ_i in (0, 1), the relative rank of token i's importance.

    λ makes the mean of p the mask rate. Only the order of importance in a sequence matters: the values 0.49 and 0.51
    have the same effect as 0 and 1. Tokens of equal importance share their mean rank.
    """

    name = "rank"
    summary = "masks important tokens more often, based on the rank of their importance"
    refs = ()

    temperature: float = param(
        1.0,
        help="temperature; large values approach uniform masking, small values mask the most important tokens first",
        ge=1e-6,
        le=1e9,
    )

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return mask probabilities p, float32 [B, L], given importance [B, L], rate [B] and maskable, bool [B, L]."""
        import torch

        from atat_zoo.diffusion.calibration import water_fill

        values = importance.double().masked_fill(~maskable, torch.inf).contiguous()
        rising = values.sort(dim=-1).values
        below = torch.searchsorted(rising, values)
        through = torch.searchsorted(rising, values, right=True)
        # below … through − 1 are the ranks of a tie; (below + through)/2 is their mean plus a half.
        rank = (below + through) / (2 * maskable.sum(-1, keepdim=True).clamp(min=1))
        return water_fill(rank.double() / self.temperature, rate, maskable)
