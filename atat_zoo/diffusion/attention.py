"""Attention, by the kernel that is fastest where it runs. B rows, H heads, Q queries, K keys, D width of a head."""

import torch
import torch.nn.functional as F
from torch import Tensor

# In bf16 on a CPU, PyTorch's fused kernel is made for long texts: up to so many keys, products of whole matrices take a
# fraction of its time, above all in the backward pass. In float32 there is little between them.
SHORT = 512


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """Return softmax(q kᵀ/√D) v, [B, H, Q, D], from q [B, H, Q, D] and k and v [B, H, K, D].

    A query sees a key where the mask is True, bool and broadcast to [B, H, Q, K]; it sees one at least. `causal` is for
    as many queries as keys, of which each sees those that are not later.
    """
    short = q.device.type == "cpu" and q.dtype is torch.bfloat16 and len(q) > 1 and k.shape[2] <= SHORT
    if not short:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        # Added, and not filled in, which is slower.
        scores = scores + torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v
