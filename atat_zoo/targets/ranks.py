"""Ranks within a row, with ties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def rank_within(values: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return (rank + ½)/n of each value among those of its row, and where that means something.

    Args:
        values: [B, L], in any floating type.
        among: which values take part, bool [B, L]; n of them in a row.

    Returns:
        Ranks, float32 [B, L], in (0, 1) where they count, else 0; tied values share
        their mean rank. And where they count, bool [B, L]: the rows with n ≥ 2.
    """
    values = values.detach().float().masked_fill(~among, torch.inf).contiguous()
    rising = values.sort(dim=-1).values
    below = torch.searchsorted(rising, values)
    through = torch.searchsorted(rising, values, right=True)
    count = among.sum(-1, keepdim=True)
    # A loss of infinity ties with what does not take part, which stands behind it.
    through = through.minimum(count)
    counted = among & (count >= 2)
    # below … through − 1 are the ranks of the tie; their mean plus a half is (below + through)/2.
    ranks = (below + through).float() / (2 * count.clamp(min=1))
    return torch.where(counted, ranks, 0.0), counted
