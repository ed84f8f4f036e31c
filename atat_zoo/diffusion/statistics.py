"""Statistics of measured values: rank correlation, and the error of a ratio."""

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """Return ranks 0 … n−1 of a vector, ties averaged, float64 [n]."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double() - 1
    ranks: Tensor = (last - (counts.double() - 1) / 2)[inverse]
    return ranks


def spearman(a: Tensor, b: Tensor) -> float:
    """Return Spearman's ρ of two vectors; NaN when one of them is constant or has fewer than 2 values."""
    if len(a) < 2:
        return float("nan")
    x, y = (average_ranks(v) for v in (a, b))
    x, y = x - x.mean(), y - y.mean()
    scale = (x.square().sum() * y.square().sum()).sqrt()
    return float((x * y).sum() / scale) if scale > 0 else float("nan")


def ratio(numerator: Tensor, denominator: Tensor) -> tuple[float, float]:
    """Return Σa / Σb and its standard error over the entries, by linearisation."""
    a, b = numerator.double(), denominator.double()
    count = len(a)
    value = a.sum() / b.sum()
    if count < 2:
        return float(value), float("nan")
    residual = a - value * b
    return float(value), float((residual.square().sum() * count / (count - 1)).sqrt() / b.sum())
