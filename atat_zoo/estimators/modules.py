"""The network of the `transformer` estimator. B sequences, L tokens, D the backbone's width, E its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.tokenizers.terms import biased

if TYPE_CHECKING:
    from atat_zoo.estimators import TransformerEstimator
    from atat_zoo.registry import Context
    from atat_zoo.tokenizers.terms import Terms


class TransformerModule(nn.Module):
    """Clean tokens to importance [B, L] in [0, 1]; starts at ½ everywhere."""

    def __init__(self, spec: TransformerEstimator, context: Context) -> None:
        super().__init__()
        self.reads_time = spec.time_conditioning
        if spec.own_embedding:
            self.embedding = nn.Embedding(context.vocabulary_size + 1, spec.width)
            nn.init.normal_(self.embedding.weight, std=1.0)
        else:
            self.project = nn.Linear(context.width, spec.width, bias=False)
            # The backbone's rows have length about 1; this makes the layers' input have entries of about 1.
            nn.init.normal_(self.project.weight, std=1.0)
        self.positions = nn.Parameter(torch.randn(min(spec.max_length, context.length), spec.width) * 0.02)
        self.time = nn.Sequential(nn.Linear(64, spec.width), nn.SiLU(), nn.Linear(spec.width, spec.width))
        if not self.reads_time:
            del self.time
        self.blocks = nn.ModuleList(Block(spec.width, spec.heads) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.out = nn.Linear(spec.width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance, float32 [B, L]; see `EstimatorModule`."""
        h = self.embedding(tokens) if hasattr(self, "embedding") else self.project(embedded)
        h = h + self.positions[: tokens.shape[1]]
        if self.reads_time:
            if t is None:
                raise ValueError("a time-conditioned estimator needs t")
            half = torch.arange(32, device=t.device, dtype=torch.float32)
            angles = 1000.0 * t.float()[:, None] * torch.exp(-math.log(10_000.0) * half / 32)
            h = h + self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))[:, None].to(h.dtype)
        # Padding is not read; a row that is all padding may read itself, and is not used.
        seen = None if bool_all(maskable) else (maskable | ~maskable.any(1, keepdim=True))[:, None, None, :]
        for block in self.blocks:
            h = block(h, seen)
        return torch.sigmoid(self.out(self.norm(h)).squeeze(-1).float())


def bool_all(maskable: Tensor) -> bool:
    """Say whether no row has padding; on a GPU the answer would cost a synchronisation, so it is no."""
    return maskable.device.type == "cpu" and bool(maskable.all())


class Block(nn.Module):
    """Pre-norm attention and feed-forward layer of width E."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: Tensor, seen: Tensor | None) -> Tensor:
        """Return h [B, L, E]."""
        B, L, E = h.shape
        q, k, v = self.qkv(self.norm_attention(h)).view(B, L, 3, self.heads, E // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        h = h + self.out(a.transpose(1, 2).reshape(B, L, E))
        return h + self.down(F.gelu(self.up(self.norm_mlp(h)), approximate="tanh"))


class Constant(nn.Module):
    """The same importance everywhere."""

    reads_time = False

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        return torch.full(tokens.shape, self.value, device=tokens.device)


class Table(nn.Module):
    """Importance by token, from a table [V + 1]; saved with the model, so that counts are needed only once."""

    reads_time = False

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.values: Tensor

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        return self.values[tokens]


def surprisal(context: Context) -> Tensor:
    """Return −log p(v) of the training tokens over its largest value, float32 [V + 1]; ½ without counts."""
    values = torch.full((context.vocabulary_size + 1,), 0.5)
    if context.counts is not None:
        counts = torch.from_numpy(context.counts).double() + 1.0
        nats = -(counts / counts.sum()).log()
        # A single token is certain: 0 nats over 0.
        values[:-1] = (nats / nats.max().clamp(min=1e-300)).float()
    return values


class Mix(nn.Module):
    """mix · a + (1 − mix) · b."""

    def __init__(self, a: nn.Module, b: nn.Module, mix: float) -> None:
        super().__init__()
        self.a, self.b, self.mix = a, b, mix
        self.reads_time = bool(a.reads_time or b.reads_time)

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        a = self.a(tokens, embedded, t, maskable)
        b = self.b(tokens, embedded, t, maskable)
        return self.mix * a + (1 - self.mix) * b


class Biased(nn.Module):
    """The importance of `base`, moved towards 1 or 0 at the tokens of the terms."""

    def __init__(self, base: nn.Module, terms: Terms, strength: float) -> None:
        super().__init__()
        self.base, self.terms, self.strength = base, terms, strength
        self.reads_time = bool(base.reads_time)

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        importance = self.base(tokens, embedded, t, maskable)
        return biased(importance, self.terms.occurrences(tokens), self.strength)
