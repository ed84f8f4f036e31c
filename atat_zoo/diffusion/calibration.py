"""Calibration of masking probabilities (mean r), numbers of masked tokens (mean r·n) and loss weights (mean 1).

See docs/explanation/adaptive-masks.md, "Importance and the mask rate" and "Masks by visible tokens".

Three functions turn scores of tokens into probabilities, each with one unknown per row. All arithmetic is in float64:
bfloat16 would miss the rate by 1e-3. Scores may be as large as 1e9, where float64 still resolves differences of 1e-7.

Shapes: B rows, L tokens; r is a row's mask rate, and n its number of maskable tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_HALVINGS = 64  # an interval of length 1e6 shrinks to 5e-14, below the resolution of float64 at 1e6


def water_fill(score: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return p_i = min(1, λ exp(score_i)), with λ such that the mean over maskable tokens is the rate.

    The k tokens with the highest scores are saturated (p = 1), where k is the smallest number with (n·r − k) ≤ G_k =
    Σ_{i>k} exp(score_i − score_{k+1}), with scores sorted in descending order. Since G_k ≤ 1 + G_{k+1}, the condition
    stays true once it is true, so k is found by counting. This takes one sort and one cumulative log-sum-exp.

    Scores [B, L] may have any floating dtype; the rate, [B], is in [0, 1]. p is float32 [B, L], 0 where not maskable;
    equal scores get equal p.
    """
    score = score.double().masked_fill(~maskable, -torch.inf)
    wanted = rate.double() * maskable.sum(-1)
    falling = score.sort(dim=-1, descending=True).values
    rest = falling.flip(-1).logcumsumexp(-1).flip(-1) - falling  # log G_k; NaN past the n-th, which is not counted
    rank = torch.arange(score.shape[-1], device=score.device)
    saturated = (wanted.unsqueeze(-1) - rank > rest.exp()).sum(-1, keepdim=True)
    # Rounding must not move the index past the end of a row in which all tokens are saturated.
    saturated = saturated.minimum((maskable.sum(-1, keepdim=True) - 1).clamp(min=0))
    # Centring at the first token that is not saturated preserves the digits that decide its p.
    centre = falling.gather(-1, saturated)
    log_scale = (wanted.unsqueeze(-1) - saturated).clamp(min=0).log() - rest.gather(-1, saturated)
    p = (score - centre + log_scale).exp()
    return _finish(p, rate, maskable)


def power_path(score: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return p_i = τ^{w_i}, w_i = exp(−score_i), with τ in [0, 1] such that the mean over maskable tokens is the rate.

    p is computed as exp(−exp(s − score_i)) by bisection in s = log(−log τ). Bisection in τ itself fails, even in
    float64, for importances divided by a temperature of 0.1. The arguments and the result are as for `water_fill`.
    """
    s = power_time(score, rate, maskable)
    return _finish(_power(score.double(), s.unsqueeze(-1)), rate, maskable)


def power_time(score: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return s = log(−log τ), float64 [B], for the τ at which the mean p of `power_path` is the rate.

    The rate is clamped away from 0 and 1, where s is infinite.
    """
    return _shift(score, rate, maskable, (-_inside(rate).log()).log(), _power)


def _power(score: Tensor, s: Tensor) -> Tensor:
    """Return τ^w for s = log(−log τ) and w = exp(−score)."""
    return (-(s - score).exp()).exp()


def logit_shift(score: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return p_i = σ(score_i + c), with c such that the mean over maskable tokens is the rate; see `water_fill`."""

    def shape(x: Tensor, s: Tensor) -> Tensor:
        return (x - s).sigmoid()

    s = _shift(score, rate, maskable, -torch.logit(_inside(rate)), shape)
    return _finish(shape(score.double(), s.unsqueeze(-1)), rate, maskable)


def _inside(rate: Tensor) -> Tensor:
    """Clamp the rate away from 0 and 1, where the unknown is infinite; `_finish` restores these rates."""
    return rate.double().clamp(1e-300, 1 - 2.0**-53)


def _shift(
    score: Tensor, rate: Tensor, maskable: Tensor, level: Tensor, shape: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the shift s, float64 [B], at which the mean of `shape(score, s)`, which decreases in s, is the rate.

    `level` [B] is the shift that gives p = rate at score 0, so s lies between level + min score and level + max score.
    """
    score = score.double()
    count = maskable.sum(-1)
    low = level + score.masked_fill(~maskable, torch.inf).amin(-1)
    high = level + score.masked_fill(~maskable, -torch.inf).amax(-1)
    low, high = (torch.where(count > 0, edge, torch.zeros_like(edge)) for edge in (low, high))
    wanted = rate.double() * count
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        total = shape(score, middle.unsqueeze(-1)).mul(maskable).sum(-1)
        too_high = total > wanted
        low, high = torch.where(too_high, middle, low), torch.where(too_high, high, middle)
    return (low + high) / 2


def _finish(p: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return p as float32, clamped to 1, exact at the rates 0 and 1, and 0 where not maskable."""
    rate = rate.unsqueeze(-1)
    p = torch.where(rate <= 0, 0.0, torch.where(rate >= 1, 1.0, p.clamp(max=1.0)))
    return torch.where(maskable, p, 0.0).float()


def comb(p: Tensor, start: Tensor) -> Tensor:
    """Return which intervals of lengths p [B, L] contain one of the points start [B], start + 1, …: bool [B, L].

    Interval i is [before, after), the cumulative sums before and after p_i. Each sum is rounded once and shared by two
    adjacent intervals, so no point is lost between them.
    """
    ends = p.double().cumsum(-1)
    # Teeth below x: ceil(x − start), at least 0. Rounding of the sums cannot break p = 1 or p = 0.
    below = (ends - start.double().unsqueeze(-1)).ceil().clamp(min=0)
    before = torch.nn.functional.pad(below[..., :-1], (1, 0))
    return ((below > before) | (p >= 1)) & (p > 0)


def tilt(importance: Tensor, strength: float | Tensor, maskable: Tensor) -> Tensor:
    """Return exp(strength · I), with importance I, divided by its mean over each row's maskable tokens.

    Dividing by the mean over the masked tokens instead would always give the only masked token of a row weight 1. A
    negative strength favours easy tokens, a positive strength hard ones. The result, float32 [B, L], is positive, and 1
    where not maskable.
    """
    # In float64 and log space: the mean stays 1 to rounding, and no strength overflows.
    logits = (importance.double() * strength).masked_fill(~maskable, -torch.inf)
    count = maskable.sum(-1, keepdim=True)
    log_mean = logits.logsumexp(-1, keepdim=True) - count.log()
    return torch.where(maskable, (logits - log_mean).exp(), 1.0).float()


# Masks that depend only on visible tokens: how many tokens to mask, and which of them to reveal.


def count_masked(rate: Tensor, maskable: Tensor, unit: Tensor) -> Tensor:
    """Return k = ⌊rn⌋ or ⌈rn⌉, int64 [B], with mean rn over uniform `unit` in [0, 1); 0 at r = 0 and n at r = 1."""
    expected = rate.double() * maskable.sum(-1)
    return (expected.floor() + (unit < expected.frac())).long()


def first_masked(order: Tensor, count: Tensor, excess: float, maskable: Tensor) -> Tensor:
    """Return a mask, bool [B, L], of the first min(n, ⌈c·k⌉) maskable tokens in an order, for k = `count`, int64 [B].

    `order` is the rank of each token, int64 [B, L], with maskable tokens first; `excess` is c ≥ 1.
    """
    candidates = (count.double() * excess).ceil()
    return (order < candidates.unsqueeze(-1)) & maskable


def lowest(scores: Tensor, order: Tensor, count: Tensor, among: Tensor) -> Tensor:
    """Return a mask, bool [B, L], of the `count` [B] tokens in `among` with the lowest scores; ties go to the first.

    NaN is treated as 0. `order` is the rank of each token, int64 [B, L], a permutation in each row, and breaks ties.
    """
    scores = scores.nan_to_num().masked_fill(~among, torch.inf)
    by_order = order.argsort(-1)
    # The sort is stable, so the order breaks ties; tokens that are not candidates come last.
    rising = by_order.gather(-1, scores.gather(-1, by_order).sort(dim=-1, stable=True).indices)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    return torch.zeros_like(among).scatter(-1, rising, rank < count.unsqueeze(-1))
