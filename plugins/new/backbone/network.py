"""The backbone's network. Shapes: B sequences, L tokens, width D, V predictable tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """Network that maps tokens [B, L] to hidden states [B, L, D], which `head` maps to logits [..., V]."""

    reads_time = False

    def __init__(self, vocabulary_size: int, layers: int, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.embedding = nn.Embedding(vocabulary_size + 1, width)
        self.layers = nn.ModuleList(Layer(width, reach) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size)

    def forward(
        self, tokens: Tensor, t: Tensor | None = None, *, positions: Tensor | None = None, attention: Any = None
    ) -> Tensor:
        """Return hidden states [B, L, D]; `BackboneModule` explains the arguments, of which `t` is ignored."""
        length = tokens.shape[1]
        place = torch.arange(length, device=tokens.device) if positions is None else positions
        distance = (place[..., :, None] - place[..., None, :]).clamp(-self.reach, self.reach) + self.reach
        seen = torch.ones(length, length, dtype=torch.bool, device=tokens.device)
        if isinstance(attention, str):  # "causal"
            seen = seen.tril()
        elif attention is not None:  # [L, L] or [B, 1, L, L]
            seen = attention[:, 0] if attention.ndim == 4 else attention
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h, distance, seen)
        normed: Tensor = self.norm(h)
        return normed


class Layer(nn.Module):
    """Weighted average over visible tokens, then a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(-0.1 * torch.arange(-reach, reach + 1.0).abs())
        self.norm = nn.LayerNorm(width)
        self.value = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, h: Tensor, distance: Tensor, seen: Tensor) -> Tensor:
        """Return the new h [B, L, D]; `distance` (int64, 0 … 2·reach) and `seen` (bool) are [L, L] or [B, L, L]."""
        share = self.weight[distance].masked_fill(~seen, -torch.inf).softmax(-1)
        h = h + share.to(h.dtype) @ self.value(self.norm(h))
        added: Tensor = self.mlp(h)
        return h + added
