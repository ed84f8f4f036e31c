"""Evaluate functions of logits in chunks of positions, so that the logits [N, V] are never all in memory at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits in memory at once: in float32, 134 MB on a CPU and 2.1 GB on an accelerator, about four times that with the
# gradient. Each chunk is added to the gradient of the head's weights, which moves as many bytes for any chunk size, so
# an accelerator, where products are cheap, uses larger chunks.
LOGITS, ON_ACCELERATOR = 1 << 25, 1 << 29


def rows_for(vocabulary_size: int, device: torch.device) -> int:
    """Return the maximum number of positions whose logits are in memory at once."""
    return max(1, (LOGITS if device.type == "cpu" else ON_ACCELERATOR) // vocabulary_size)


def cuts(positions: int, rows: int) -> list[slice]:
    """Return the fewest slices of at most `rows` positions, of nearly equal length."""
    length = math.ceil(positions / max(1, math.ceil(positions / rows)))
    return [slice(first, first + length) for first in range(0, positions, max(1, length))]


def wide(logits: Tensor) -> Tensor:
    """Return logits in float32, or in their own precision if it is higher."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def in_chunks(function: Callable[..., dict[str, Tensor]], rows: int, *tensors: Tensor | None) -> dict[str, Tensor]:
    """Return a function's values at N positions, a dict of tensors [N], in chunks of at most `rows` positions.

    The function takes n positions of each of `tensors`, [N, …] or None. The backward pass recomputes each chunk (Chen
    et al., arXiv:1604.06174), which takes one more product with the head's weights, so no logits are stored. Up to
    `rows` positions form a single chunk, which is not recomputed.
    """
    positions = next(len(tensor) for tensor in tensors if tensor is not None)
    if positions <= rows:
        return function(*tensors)
    chunks = []
    for cut in cuts(positions, rows):
        inputs = [None if tensor is None else tensor[cut] for tensor in tensors]
        if torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint  # takes half a second, and only training needs it

            # The function draws nothing from torch's own generator.
            chunks.append(checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False))
        else:
            chunks.append(function(*inputs))
    return joined(chunks)


def joined(chunks: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return a dict of the values of all chunks, concatenated."""
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def weighted_sum(
    function: Callable[..., dict[str, Tensor]],
    rows: int,
    weight: Tensor,
    parameters: Sequence[Tensor],
    hidden: Tensor,
    *others: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return Σ_i weight_i · loss_i over N positions, and a dict of the function's values, each [N]; see `in_chunks`.

    Only the sum has a gradient, which is computed chunk by chunk in the forward pass; the backward pass only scales it,
    so nothing is computed twice (Hsu et al., Liger Kernel, arXiv:2410.10989; here, autograd handles any head and any
    loss). The loss is the function's value `"loss"`. The gradient reaches the function's first argument, `hidden`
    [N, D], and `parameters`, the leaf tensors that the function reads; the weight, [N], and `others`, [N, …] or None,
    receive none.
    """
    of_hidden, of_parameters = torch.empty_like(hidden), dict[int, Tensor]()

    def with_gradients(cut: slice) -> dict[str, Tensor]:
        # A function, so that all tensors of a chunk are freed before the next chunk.
        h = hidden[cut].detach().requires_grad_()
        values = function(h, *(None if other is None else other[cut] for other in others))
        total = (weight[cut] * values["loss"]).sum()
        of_hidden[cut], *changes = torch.autograd.grad(total, [h, *parameters], allow_unused=True)
        for number, change in enumerate(changes):
            if change is not None:
                # Not in place: two parameters that are added have the same gradient tensor.
                before = of_parameters.get(number)
                of_parameters[number] = wide(change) if before is None else before + change
        return {name: value.detach() for name, value in values.items()}

    values = joined([with_gradients(cut) for cut in cuts(len(hidden), rows)])
    apply: Any = _WithGradients.apply
    gradients, read = [of_hidden, *of_parameters.values()], [parameters[number] for number in of_parameters]
    return apply((weight * values["loss"]).sum(), gradients, hidden, *read), values


class _WithGradients(torch.autograd.Function):
    """An autograd function whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    # To torch, the saved gradients are constants. Its decorator has no types.
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, *(saved * gradient for saved in ctx.saved_tensors)
