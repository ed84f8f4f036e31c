"""Attention with a fast kernel for the device and dtype. Shapes: B rows, H heads, Q queries, K keys, head width D."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# In bf16 on a CPU, PyTorch's fused kernel is made for long texts: up to this many keys, products of whole matrices take
# a fraction of its time, above all in the backward pass. In float32 the difference is small.
SHORT = 512


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
    short = q.device.type == "cpu" and q.dtype is torch.bfloat16 and len(q) > 1 and k.shape[2] <= SHORT
    if not short:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        # Adding a bias is faster than filling in −∞.
        scores = scores + torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v
