"""Statistics: rank correlation, and the standard error of a ratio."""

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """Return the ranks 0 … n−1 of a vector, float64 [n]; ties get their mean rank."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double() - 1
    return (last - (counts.double() - 1) / 2)[inverse]


def rank_within(values: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return (rank + ½)/n of each value among the n values of its row in `among`, float32 [B, L], and where it is set.

    Ties share their mean rank. The second result, bool [B, L], is `among` in rows with n ≥ 2; elsewhere the first is 0.
    """
    values = values.detach().float().masked_fill(~among, torch.inf).contiguous()
    rising = values.sort(dim=-1).values
    below = torch.searchsorted(rising, values)
    through = torch.searchsorted(rising, values, right=True)
    count = among.sum(-1, keepdim=True)
    # An infinite loss ties with the values that are not selected, which are sorted behind it.
    through = through.minimum(count)
    counted = among & (count >= 2)
    # below … through − 1 are the ranks of the tie; their mean plus a half is (below + through)/2.
    ranks = (below + through).float() / (2 * count.clamp(min=1))
    return torch.where(counted, ranks, 0.0), counted


def spearman(a: Tensor, b: Tensor) -> float:
    """Return Spearman's ρ of two vectors; NaN if either is constant or has fewer than 2 values."""
    if len(a) < 2:
        return float("nan")
    x, y = (average_ranks(v) for v in (a, b))
    x, y = x - x.mean(), y - y.mean()
    scale = (x.square().sum() * y.square().sum()).sqrt()
    return float((x * y).sum() / scale) if scale > 0 else float("nan")


def spearman_by_chance(ids: Tensor, values: Tensor) -> float:
    """Return the standard error of ρ between `values`, [N], and one random number per distinct id, int64 [N].

    An untrained estimator gives identical tokens about the same importance. The square of the standard error is then
    Σ_v p_v² (r̄_v − r̄)² / Var r, where p_v is the share of id v, r̄_v is the mean rank of its values, and r̄ and Var r
    are those of all ranks. If all ids differ, the result is 1/√N. It is NaN for fewer than 2 or for identical values.
    """
    if len(values) < 2:
        return float("nan")
    ranks = average_ranks(values).double()
    ranks -= ranks.mean()
    of = ids.unique(return_inverse=True)[1]
    sums = torch.zeros(int(of.max()) + 1, dtype=torch.float64).index_add_(0, of, ranks)  # p_v (r̄_v − r̄) N
    variance = ranks.square().sum()
    return float((sums.square().sum() / (len(values) * variance)).sqrt()) if variance > 0 else float("nan")


def largest_spearman(first: Tensor, second: Tensor) -> float:
    """Return the largest Spearman ρ with the losses of masked tokens that a function of the clean sequence can reach.

    `first` and `second` are the losses under independent samples of masks, [n, K, L], NaN where a token is not masked.
    With the rank r of a loss, no function of the token and its sequence exceeds √(Var E[r | token] / Var r), and the
    numerator is the covariance of r under two independent masks. The result is NaN if no token is masked in both.
    """
    both = torch.stack([first, second]).double()
    seen = both.isfinite()
    ranks = torch.zeros_like(both)
    ranks[seen] = average_ranks(both[seen]).double()
    ranks = torch.where(seen, ranks - ranks[seen].mean(), 0)
    (one, other), (times, of_other) = ranks.sum(2), seen.sum(2)  # over the masks of each sample
    pairs, variance = (times * of_other).sum(), ranks.square().sum() / seen.sum()
    return float(((one * other).sum() / pairs / variance).clamp(min=0).sqrt())


def ratio(numerator: Tensor, denominator: Tensor) -> tuple[float, float]:
    """Return Σ numerator / Σ denominator and its standard error over the entries (delta method), NaN for one entry."""
    a, b = numerator.double(), denominator.double()
    count = len(a)
    value = a.sum() / b.sum()
    if count < 2:
        return float(value), float("nan")
    residual = a - value * b
    return float(value), float((residual.square().sum() * count / (count - 1)).sqrt() / b.sum())
