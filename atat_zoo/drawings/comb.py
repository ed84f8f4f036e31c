"""Systematic sampling in a given order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def comb(p: Tensor, start: Tensor) -> Tensor:
    """Return which pieces are hit by the teeth at start, start + 1, and so on.

    Piece i lies between the cumulative sums before and after p_i, and is hit when
    a tooth is in [before, after). Each sum is rounded once and shared by both of
    its neighbours, so a tooth is never lost between them.

    Args:
        p: lengths in [0, 1], [B, L].
        start: the first tooth, in [0, 1), [B].

    Returns:
        bool [B, L].
    """
    ends = p.double().cumsum(-1)
    # Teeth below x: ceil(x − start), at least 0. Rounding of the sums cannot break p = 1 or p = 0.
    below = (ends - start.double().unsqueeze(-1)).ceil().clamp(min=0)
    before = torch.nn.functional.pad(below[..., :-1], (1, 0))
    return ((below > before) | (p >= 1)) & (p > 0)
