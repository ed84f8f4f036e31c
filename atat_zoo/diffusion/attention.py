"""Attention with a fast kernel for the device and dtype. Shapes: B rows, H heads, Q queries, K keys, head width D."""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# In bf16 on a CPU, products of whole matrices take a fraction of the time of PyTorch's fused kernel for several rows of
# up to SHORT keys, and for at least MANY queries, except in causal attention. In float32 the difference is small.
SHORT, MANY = 512, 128
# Beyond SHORT keys, they keep at most WEIGHTS attention weights, 64 MB, for the backward pass. If a batch has more, it
# computes them again, which takes a third longer but keeps as little as the fused kernel.
WEIGHTS = 1 << 25


# Whether a query sees a key, bool, given the indices of row, head, query and key, which are broadcast.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attention_mask(rule: Rule, rows: int | None, length: int, device: torch.device, *, in_blocks: bool = False) -> Any:
    """Return the mask of an attention rule for `attend`: bool [B, 1, Q, K] with Q = K = `length`.

    Without `rows`, the number B, the rule must not depend on the row, and the mask is [Q, K]. With `in_blocks`, it is a
    `BlockMask`, with which torch's FlexAttention (Dong et al., arXiv:2412.05496) skips blocks of 128 × 128 that are
    fully masked. Use that only for a compiled network on a GPU; elsewhere, it is slow.
    """
    if in_blocks:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(rule, rows, None, length, length, device=str(device))
    token = torch.arange(length, device=device)
    row = token[0] if rows is None else torch.arange(rows, device=device)[:, None, None, None]
    return rule(row, token[0], token[:, None], token)


def document_rule(documents: Tensor, *, causal: bool = False) -> Rule:
    """Return the rule that lets a token attend only within its document, from document numbers, int64 [B, L].

    If `causal`, a token attends to itself and earlier tokens of its document.
    """

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = documents[row, query] == documents[row, key]
        return same & (key <= query) if causal else same

    return sees


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, *, causal: bool = False) -> Tensor:
    """Return softmax(q kᵀ/√D) v, [B, H, Q, D], for q [B, H, Q, D] and for k and v [B, H, K, D].

    A query attends to the keys where the mask is True. The mask is bool, broadcast to [B, H, Q, K], or a `BlockMask`,
    with at least one key per query. With `causal` (Q = K, no mask), a query attends to its own and earlier keys.
    """
    if mask is not None and not isinstance(mask, Tensor):
        from torch.nn.attention.flex_attention import flex_attention

        attended = flex_attention(q, k, v, block_mask=mask)
        assert isinstance(attended, Tensor)  # with other arguments, it returns a tuple
        return attended
    (rows, heads, queries, _), keys = q.shape, k.shape[2]
    weights, short = heads * queries * keys, rows > 1 and keys <= SHORT
    many = queries >= MANY and weights <= WEIGHTS and not causal and not torch.compiler.is_compiling()
    if not (q.device.type == "cpu" and q.dtype is torch.bfloat16 and (short or many)):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    if causal:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril()
    return (_by_products if short or rows * weights <= WEIGHTS else _recomputed)(q, k, v, mask)


def _recomputed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return what `_by_products` returns; the backward pass computes WEIGHTS weights at a time again."""
    from torch.utils.checkpoint import checkpoint  # takes half a second

    rows = WEIGHTS // (q.shape[1] * q.shape[2] * k.shape[2])
    masks: Iterable[Tensor | None] = repeat(mask)
    if mask is not None and mask.ndim == 4 and len(mask) > 1:
        masks = mask.split(rows)
    parts = zip(q.split(rows), k.split(rows), v.split(rows), masks, strict=False)
    return torch.cat([checkpoint(_by_products, *p, use_reentrant=False, preserve_rng_state=False) for p in parts])


def _by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    if mask is not None:
        # Adding a bias is faster than filling in −∞.
        scores = scores + torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
    return scores.softmax(-1, dtype=v.dtype) @ v
