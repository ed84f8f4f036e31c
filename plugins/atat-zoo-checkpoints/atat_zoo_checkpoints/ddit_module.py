"""The network of `ddit`.

Shapes: B sequences, L tokens, D width, C width of the condition, H heads, V predictable tokens.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.diffusion.attention import attend
from atat_zoo_checkpoints.vocabulary import PublishedNetwork, positions_of, rates, rotate, rotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.diffusion.cache import Cache
    from atat_zoo.registry import Context

FREQUENCIES = 256  # number of sinusoidal features of σ


class DDiTModule(PublishedNetwork):
    """Network that maps tokens [B, L] to hidden states [B, L, D], which `head` maps to logits [..., V]."""

    takes_cache = True

    def __init__(
        self,
        context: Context,
        *,
        name: str,
        layers: int,
        width: int,
        heads: int,
        condition: int,
        rows: int | None,
        mask_id: int | None,
        time_conditioning: bool,
        eps: float,
        max_length: int,
        clipped: bool,
        **others: Any,  # parameters that the network does not use
    ) -> None:
        super().__init__(context, name=name, rows=rows, mask_id=mask_id, width=width)
        self.reads_time, self.eps, self.max_length = time_conditioning, eps, max_length
        self.takes_block_masks = width // heads >= 16  # FlexAttention's kernel refuses smaller heads
        self.sigma = (
            nn.Sequential(nn.Linear(FREQUENCIES, condition), nn.SiLU(), nn.Linear(condition, condition))
            if condition
            else None
        )
        self.blocks = nn.ModuleList(Layer(width, heads, condition) for _ in range(layers))
        self.norm, self.modulation = nn.LayerNorm(width, bias=False), modulation(width, condition, 2)
        self.head.bias = nn.Parameter(torch.zeros(self.rows))
        self.register_buffer("rates", rates(width // heads), persistent=False)
        self.rates: Tensor
        nn.init.normal_(self.table.weight, std=1.0 / math.sqrt(width))
        # The interval of mask rates used to train a block diffusion model, stored but not used here.
        self.clip = nn.Buffer(torch.tensor([1e-3, 1.0])) if clipped else None

    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attention: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the hidden states [B, L, D]; see `BackboneModule`. Raise a `ValueError` without a required t."""
        position = positions_of(tokens, positions, attention, cache, longest=self.max_length)
        h = self.embed(tokens)
        c = self.condition(t, h)
        by = rotation(position, self.rates, h.dtype)
        for number, layer in enumerate(self.blocks):
            h = layer(h, c, by, attention, None if cache is None else partial(cache.join, number))
        return modulated(self.norm(h), *(pair(self.modulation, c)))

    def condition(self, t: Tensor | None, h: Tensor) -> Tensor | None:
        """Return the adaLN condition: [B, C] for σ(t), [1, C] for σ = 0 if time is not read, or None without adaLN."""
        if self.sigma is None:
            return None
        if not self.reads_time:
            sigma = torch.zeros(1, device=h.device)
        elif t is None:
            raise ValueError("a time-conditioned backbone requires t")
        else:
            sigma = -torch.log1p((self.eps - 1) * t.float())
        half = FREQUENCIES // 2
        angles = torch.arange(half, device=h.device, dtype=torch.float32) * (-math.log(10_000.0) / half)
        angles = sigma[:, None] * angles.exp()
        return F.silu(self.sigma(torch.cat([angles.cos(), angles.sin()], dim=-1).to(h.dtype)))


class Layer(nn.Module):
    """Transformer layer: attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int, condition: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = modulation(width, condition, 6)

    def forward(
        self,
        h: Tensor,
        c: Tensor | None,
        by: tuple[Tensor, Tensor],
        attention: Any,
        join: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None,
    ) -> Tensor:
        """Return the updated hidden states [B, L, D], given the condition c; `join` prepends cached keys and values."""
        B, L, D = h.shape
        changes: Any = (None,) * 6
        if self.modulation is not None and c is not None:
            changes = self.modulation(c).unsqueeze(1).chunk(6, dim=-1)
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = changes
        q, k, v = self.qkv(modulated(self.norm_attention(h), shift, scale)).view(B, L, 3, self.heads, -1).unbind(2)
        q, k, v = rotate(q, by).transpose(1, 2), rotate(k, by).transpose(1, 2), v.transpose(1, 2)
        if join is not None:
            k, v = join(k, v)
        causal = isinstance(attention, str)
        a = attend(q, k, v, None if causal else attention, causal=causal)
        h = h + gated(self.out(a.transpose(1, 2).reshape(B, L, D)), gate)
        inner = self.up(modulated(self.norm_mlp(h), shift_mlp, scale_mlp))
        return h + gated(self.down(F.gelu(inner, approximate="tanh")), gate_mlp)


def modulation(width: int, condition: int, parts: int) -> nn.Linear | None:
    """Return a zero-initialised layer from a condition to `parts` vectors [D], or None for a condition of width 0."""
    if not condition:
        return None
    layer = nn.Linear(condition, parts * width)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def pair(layer: nn.Linear | None, c: Tensor | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return a shift and a scale, each [B, 1, D], or (None, None) without adaLN."""
    if layer is None or c is None:
        return None, None
    shift, scale = layer(c).unsqueeze(1).chunk(2, dim=-1)
    return shift, scale


def modulated(x: Tensor, shift: Tensor | None, scale: Tensor | None) -> Tensor:
    """Return x (1 + scale) + shift, or x without adaLN."""
    return x if shift is None or scale is None else x * (1 + scale) + shift


def gated(x: Tensor, gate: Tensor | None) -> Tensor:
    """Return gate · x, or x without adaLN."""
    return x if gate is None else gate * x


def published_weights(module: DDiTModule, prefix: str) -> dict[str, Tensor]:
    """Return a dict from published name to a view of the network's weight; layers' names begin with `prefix`."""
    names = {f"{prefix}vocab_embed.embedding": module.table.weight}
    if module.sigma is not None:
        names |= _of(f"{prefix}sigma_map.mlp.0", module.sigma[0]) | _of(f"{prefix}sigma_map.mlp.2", module.sigma[2])
    for number, layer in enumerate(module.blocks):
        own = {
            "norm1": layer.norm_attention,
            "attn_qkv": layer.qkv,
            "attn_out": layer.out,
            "norm2": layer.norm_mlp,
            "mlp.0": layer.up,
            "mlp.2": layer.down,
            "adaLN_modulation": layer.modulation,
        }
        for name, part in own.items():
            names |= _of(f"{prefix}blocks.{number}.{name}", part)
    last = {"norm_final": module.norm, "linear": module.head, "adaLN_modulation": module.modulation}
    for name, part in last.items():
        names |= _of(f"{prefix}output_layer.{name}", part)
    if module.clip is not None:
        names |= {"sampling_eps_min": module.clip[0], "sampling_eps_max": module.clip[1]}
    return names


def sets_mask(length: int, device: torch.device) -> Tensor:
    """Return SetDLM's attention mask, bool [2L, 2L], for L tokens in decoding order, followed by L masks."""
    own = torch.eye(length, dtype=torch.bool, device=device)
    no_later = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return torch.cat([torch.cat([no_later, no_later & ~own]), torch.cat([torch.zeros_like(own), own])], 1)


def _of(name: str, part: Any) -> dict[str, Tensor]:
    return {} if part is None else {f"{name}.{key}": weight for key, weight in part.named_parameters()}
