"""What all metrics start from and end with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax and how many tokens take part.

    Args:
        logits: [..., V], in any floating type; −∞ excludes a token.

    Returns:
        p, [..., V], float64 for float64 and float32 otherwise, the one large tensor
        that is made; and the number of tokens that are not excluded, [...].
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    count = logits.isneginf().logical_not_().sum(-1)
    return logits.softmax(-1, dtype=wide), count


def bounded(value: Tensor, count: Tensor) -> Tensor:
    """Return the value in [0, 1] as float32; 0 where fewer than two tokens were left to choose from."""
    return torch.where(count > 1, value.clamp(0, 1), 0.0).float()
