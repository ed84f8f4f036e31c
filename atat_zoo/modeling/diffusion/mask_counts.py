"""Masks that depend on visible tokens alone: how many tokens, and which of them to show again.

See docs/mathematics.md, "Masks by visible tokens".

Shapes: B rows, L tokens; n is a row's number of maskable tokens.
"""

import torch
from torch import Tensor


def count_masked(rate: Tensor, maskable: Tensor, unit: Tensor) -> Tensor:
    """Return k, ⌊rn⌋ or ⌈rn⌉ with mean rn over the uniforms `unit` in [0, 1), int64 [B]; exactly 0 and n at 0 and 1."""
    expected = rate.double() * maskable.sum(-1)
    return (expected.floor() + (unit < expected.frac())).long()


def first_masked(order: Tensor, count: Tensor, excess: float, maskable: Tensor) -> Tensor:
    """Return the first min(n, ⌈c·k⌉) tokens of an order of the maskable ones, bool [B, L], for k = `count`, int64 [B].

    The order is the rank of each token, int64 [B, L], the maskable ones first; the excess is c ≥ 1.
    """
    candidates = (count.double() * excess).ceil()
    return (order < candidates.unsqueeze(-1)) & maskable


def lowest(scores: Tensor, order: Tensor, count: Tensor, among: Tensor) -> Tensor:
    """Return the `count` [B] tokens of lowest score among some, bool [B, L]; of equal scores the first of the order.

    NaN counts as 0. The order is the rank of each token, int64 [B, L]: a permutation in each row.
    """
    scores = scores.nan_to_num().masked_fill(~among, torch.inf)
    by_order = order.argsort(-1)
    # Stable, so that the order decides between equals; those that are not among the candidates come last.
    rising = by_order.gather(-1, scores.gather(-1, by_order).sort(dim=-1, stable=True).indices)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    return torch.zeros_like(among).scatter(-1, rising, rank < count.unsqueeze(-1))
