"""A plain implementation of ancestral sampling as published, with which the loop in `generation.samplers` is compared.

At every step the network and its head run on every position of every row, and a token, possibly the mask, is drawn at
every position by Gumbel-max in float64 (Sahoo et al., arXiv:2406.07524, algorithm 1 and equation 6; float64 after Zheng
et al., arXiv:2409.02908). Linear schedule: at step k of T, t = 1 − k/T and s = t − 1/T, and a masked token stays masked
with probability s/t and is otherwise drawn from p_θ. B rows, L positions, V predictable tokens; m = V is the mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def sample(
    logits: Callable[[Tensor], Tensor], tokens: Tensor, steps: int, mask_id: int, generator: torch.Generator
) -> Tensor:
    """Fill every mask of z, int64 [B, L]; `logits` returns the logits of z, [B, L, V]."""
    for k in range(steps):
        tokens = step(logits, tokens, 1 - k / steps, 1 - (k + 1) / steps, mask_id, generator)
    return tokens


@torch.no_grad()
def step(
    logits: Callable[[Tensor], Tensor], z: Tensor, t: float, s: float, mask_id: int, generator: torch.Generator
) -> Tensor:
    """Return z at time s, int64 [B, L], from z at time t."""
    p = logits(z).double().softmax(-1)
    q = torch.cat([p * ((t - s) / t), torch.full_like(p[..., :1], s / t)], dim=-1)
    gumbel = -torch.log(-torch.log(torch.rand(q.shape, dtype=torch.float64, device=z.device, generator=generator)))
    drawn = (q.log() + gumbel).argmax(-1)
    return torch.where(z == mask_id, drawn, z)
