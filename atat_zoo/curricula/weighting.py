"""Weights from importance and a strength: what the staged curricula have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def tilt(importance: Tensor, strength: float | Tensor, maskable: Tensor) -> Tensor:
    """Return exp(strength · I), divided by its mean over each row's maskable tokens.

    The mean is not taken over the masked tokens, where a lone one would always weigh 1.

    Args:
        importance: I in [0, 1], [B, L], in any floating type.
        strength: negative favours easy tokens, positive hard ones, 0 gives 1 everywhere.
        maskable: bool [B, L].

    Returns:
        c, float32 [B, L]: positive; 1 where not maskable.
    """
    # In float64 and log space: the mean stays 1 to rounding, and no strength overflows.
    logits = (importance.double() * strength).masked_fill(~maskable, -torch.inf)
    count = maskable.sum(-1, keepdim=True)
    log_mean = logits.logsumexp(-1, keepdim=True) - count.log()
    return torch.where(maskable, (logits - log_mean).exp(), 1.0).float()
