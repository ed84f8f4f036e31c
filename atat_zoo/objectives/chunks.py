"""Functions of logits, a bounded number of places at a time: [N, V] never stands in memory where it is large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

# Logits at once: 64 MB in float32, and about three times that with the gradient.
LOGITS = 1 << 24


def rows_for(vocabulary_size: int) -> int:
    """Return how many places have their logits in memory at once."""
    return max(1, LOGITS // vocabulary_size)


def wide(logits: Tensor) -> Tensor:
    """Return logits in float32, or in their own precision if it is higher."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def in_chunks(function: Callable[..., dict[str, Tensor]], rows: int, *tensors: Tensor | None) -> dict[str, Tensor]:
    """Return what a function makes of N places, by names [N], evaluated `rows` places at a time.

    A gradient recomputes each chunk (Chen et al., arXiv:1604.06174): one more product with the head's weights in place
    of logits kept from forward to backward. Up to `rows` places nothing changes.

    Args:
        function: of tensors [n, …], or None where None is given.
        rows: the most places at once.
        tensors: [N, …] each, or None.
    """
    places = next(len(tensor) for tensor in tensors if tensor is not None)
    if places <= rows:
        return function(*tensors)
    found = []
    for first in range(0, places, rows):
        some = [None if tensor is None else tensor[first : first + rows] for tensor in tensors]
        if torch.is_grad_enabled():
            # Nothing in it draws from torch's own generator.
            found.append(checkpoint(function, *some, use_reentrant=False, preserve_rng_state=False))
        else:
            found.append(function(*some))
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, rows: int) -> Tensor:
    """Return −log softmax(W h + b)_x of N places, nats [N], with the logits of `rows` places in memory at once.

    The same as a linear layer and a cross-entropy, gradient included, in the precision of the autocast that is on. Each
    chunk is computed again for the gradient, which is formed in place: what the product costs, the passes over memory
    save.

    Args:
        hidden: h, [N, D].
        weight: W, [V, D].
        bias: b, [V], or None.
        x: the true tokens, int64 [N].
        rows: the most places at once.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    apply: Any = _LinearCrossEntropy.apply
    found: Tensor = apply(hidden, weight, bias, x, rows, dtype)
    return found


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, rows: int, dtype: torch.dtype
    ) -> Tensor:
        ctx.rows, ctx.dtype = rows, dtype
        found, W = [], weight.to(dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for h, true in zip(torch.split(hidden.to(dtype), rows), torch.split(x, rows), strict=True):
                found.append(F.cross_entropy(wide(_logits(h, W, bias)), true, reduction="none"))
        ctx.save_for_backward(hidden, weight, bias, x)
        return torch.cat(found)

    @staticmethod
    # In place, so it has no derivative of its own. torch gives the decorator no types.
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Any:
        hidden, weight, bias, x = ctx.saved_tensors
        W, of_hidden = weight.to(ctx.dtype), torch.empty_like(hidden)
        of_weight, of_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        with torch.autocast(hidden.device.type, enabled=False):
            for first in range(0, len(hidden), ctx.rows):
                cut = slice(first, first + ctx.rows)
                h = hidden[cut].to(ctx.dtype)
                d = wide(_logits(h, W, bias)).softmax(1)  # and then (softmax − one-hot) × gradient, in place
                one = torch.ones_like(d[:, :1])
                d.scatter_add_(1, x[cut, None], -one).mul_(gradient[cut, None])
                if of_bias is not None:
                    of_bias += d.sum(0)
                d = d.to(ctx.dtype)
                of_hidden[cut] = d @ W
                of_weight += d.T @ h
        return of_hidden, of_weight, of_bias, None, None, None


def _logits(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(h, weight, None if bias is None else bias.to(h.dtype))
