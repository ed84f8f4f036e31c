"""The networks of `llama` and `llada2`.

Shapes: B sequences, L tokens, D width, H heads, K key/value heads, V predictable tokens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.diffusion.attention import attend
from atat_zoo.system.errors import UserError
from atat_zoo_checkpoints.vocabulary import PublishedNetwork, positions_of, rates, rotate, rotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.diffusion.cache import Cache
    from atat_zoo.registry import Context


class LlamaModule(PublishedNetwork):
    """Network that maps tokens [B, L] to hidden states [B, L, D], which `head` maps to logits [..., V]."""

    reads_time = False
    takes_cache = True

    def __init__(
        self,
        context: Context,
        *,
        name: str,
        layers: int,
        width: int,
        heads: int,
        kv_heads: int | None,
        head_size: int,
        feed_forward: Callable[[int, torch.dtype], nn.Module],
        qkv_bias: bool,
        out_bias: bool,
        qk_norm: bool,
        theta: float,
        rotated: float,
        eps: float,
        rows: int | None,
        mask_id: int | None,
        shift: bool,
        max_length: int,
        dtype: str,
        **others: Any,  # parameters that the network does not use
    ) -> None:
        """Create the network; see `LlamaBackbone`. `feed_forward` returns the feed-forward network for a layer."""
        of: Any = {"dtype": getattr(torch, dtype)}
        super().__init__(context, name=name, rows=rows, mask_id=mask_id, width=width, **of)
        self.shift, self.max_length = shift, max_length
        self.takes_block_masks = head_size >= 16  # FlexAttention's kernel refuses smaller heads
        sizes = {"width": width, "heads": heads, "kv_heads": kv_heads or heads, "head_size": head_size, "eps": eps}
        switches = {"qkv_bias": qkv_bias, "out_bias": out_bias, "qk_norm": qk_norm}
        own: Any = sizes | switches
        self.blocks = nn.ModuleList(
            Layer(feed_forward=partial(feed_forward, number, **of), **own, **of) for number in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=eps, **of)
        # Float32 even if the weights are not, regardless of `to`.
        self.angles = rates(int(head_size * rotated), theta)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attention: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the hidden states [B, L, D]; see `BackboneModule`. With `shift`, a mask or cache is an error."""
        position = positions_of(tokens, positions, attention, cache, longest=self.max_length)
        if self.shift and (attention is not None or cache is not None):
            raise UserError(
                "backbone.shift predicts each token at the position before it, which requires full attention and no "
                "cache; set it to false for this objective"
            )
        h = self.embed(tokens)
        by = rotation(position, self.angles.to(h.device), h.dtype)
        for number, layer in enumerate(self.blocks):
            h = layer(h, by, attention, None if cache is None else partial(cache.join, number))
        h = self.norm(h)
        return torch.cat([h[:, :1], h[:, :-1]], dim=1) if self.shift else h


class Layer(nn.Module):
    """Transformer layer: attention and a feed-forward network, each with a residual connection."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        eps: float,
        qkv_bias: bool,
        out_bias: bool,
        qk_norm: bool,
        feed_forward: Callable[[], nn.Module],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        of: Any = {"dtype": dtype}
        self.heads, self.kv_heads = heads, kv_heads
        self.norm_attention = nn.RMSNorm(width, eps=eps, **of)
        self.norm_mlp = nn.RMSNorm(width, eps=eps, **of)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * head_size, bias=qkv_bias, **of)
        self.norm_q = nn.RMSNorm(head_size, eps=eps, **of) if qk_norm else None
        self.norm_k = nn.RMSNorm(head_size, eps=eps, **of) if qk_norm else None
        self.out = nn.Linear(heads * head_size, width, bias=out_bias, **of)
        self.mlp = feed_forward()

    def forward(
        self,
        h: Tensor,
        by: tuple[Tensor, Tensor],
        attention: Any,
        join: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None,
    ) -> Tensor:
        """Return the updated hidden states [B, L, D]; `join` prepends cached keys and values with K heads."""
        B, L, _ = h.shape
        qkv = self.qkv(self.norm_attention(h)).view(B, L, self.heads + 2 * self.kv_heads, -1)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        if self.norm_q is not None and self.norm_k is not None:
            q, k = self.norm_q(q), self.norm_k(k)
        q, k, v = rotate(q, by).transpose(1, 2), rotate(k, by).transpose(1, 2), v.transpose(1, 2)
        if join is not None:
            k, v = join(k, v)
        if (shared := self.heads // self.kv_heads) > 1:
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        causal = isinstance(attention, str)
        a = attend(q, k, v, None if causal else attention, causal=causal)
        h = h + self.out(a.transpose(1, 2).reshape(B, L, -1))
        return h + self.mlp(self.norm_mlp(h))


class SwiGLU(nn.Module):
    """Gated feed-forward network (Shazeer, arXiv:2002.05202)."""

    def __init__(self, width: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False, dtype=dtype)
        self.up = nn.Linear(width, inner, bias=False, dtype=dtype)
        self.down = nn.Linear(inner, width, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [..., D] for x [..., D]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def published_weights(module: LlamaModule, names: dict[str, str]) -> dict[str, Tensor]:
    """Return a dict from published name to a view of the network's weight; `names` is from `llama.FORMS`."""
    found = {f"{names['table']}.weight": module.table.weight}
    for number, layer in enumerate(module.blocks):
        at = f"{names['layer']}.{number}."
        for name, part in (*layer.named_parameters(), *layer.named_buffers()):
            owner, _, kind = name.rpartition(".")
            if owner == "qkv" and "qkv" not in names:
                size = part.shape[0] // (layer.heads + 2 * layer.kv_heads)
                split = [layer.heads * size, layer.kv_heads * size, layer.kv_heads * size]
                for each, rows in zip("qkv", part.split(split), strict=True):
                    found[f"{at}{names[each]}.{kind}"] = rows
            else:
                found[f"{at}{_name(owner, names)}.{kind}"] = part
    return found | {f"{names['norm']}.weight": module.norm.weight, f"{names['head']}.weight": module.head.weight}


def _name(owner: str, names: dict[str, str]) -> str:
    """Return the published name of a weight in a layer; an expert's weights have the names used in a dense layer."""
    if owner in names:
        return names[owner]
    outer, _, last = owner.rpartition(".")
    return f"{outer}.{names[f'mlp.{last}'].rpartition('.')[2]}"
