"""An upper and a lower bound on −log p(x) from several decoding orders of x (docs/explanation/mathematics.md).

With p(x) = E_σ[p(x | σ)], K independent orders and w_k = p(x | σ_k), the mean of the w_k has the expectation p(x), so
the expectation of its logarithm is at most log p(x) (Burda et al., arXiv:1509.00519). The tangent of the logarithm at
any ψ > 0 lies above the logarithm, so if ψ is independent of the w_k,

    log p(x) ≤ log ψ + E[(1/K) Σ w_k] / ψ − 1,   equality at ψ = p(x)   (arXiv:2605.24292)

Each half of the orders gives ψ for the other half. Shapes: n sequences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Bracket(NamedTuple):
    """Bounds on −log p(x) that hold in expectation, in nats, and the effective number of orders; each float64 [n]."""

    upper: Tensor  # −log of the mean of the w_k
    lower: Tensor  # from the tangent; −∞ where the two halves of the orders differ too much
    effective: Tensor  # (Σ w_k)² / Σ w_k², the effective number of orders


def bracket(nats: Tensor) -> Bracket:
    """Return both bounds from −log w_k of K orders, in nats, float64 [n, K]; raise a `ValueError` unless K is even."""
    K = nats.shape[1]
    if K < 2 or K % 2:
        raise ValueError(f"the lower bound needs an even number of orders, not {K}")
    one, other = (half.logsumexp(1) - math.log(K // 2) for half in (-nats).split(K // 2, dim=1))
    apart = other - one
    # The mean of both tangents: log ψ + w/ψ − 1 with ψ from one half and w from the other.
    lower = -((one + other) / 2 + (apart.expm1() + (-apart).expm1()) / 2)
    lower = lower.masked_fill(lower.isnan(), -math.inf)  # for a text that some order cannot generate
    total = (-nats).logsumexp(1)
    return Bracket(math.log(K) - total, lower, (2 * total - (-2 * nats).logsumexp(1)).exp())
