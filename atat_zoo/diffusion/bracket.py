"""A bracket around the likelihood of a text over many decoding orders (docs/explanation/mathematics.md, "A bracket").

With p(x) = E_σ[p(x | σ)], K independent orders and w_k = p(x | σ_k), the mean of the w_k is p(x) on average, so its
logarithm is on average below log p(x) (Burda et al., arXiv:1509.00519). The tangent of the logarithm at any ψ > 0 lies
above it: if ψ is independent of the w_k,

    log p(x) ≤ log ψ + E[(1/K) Σ w_k] / ψ − 1,   equality at ψ = p(x)   (arXiv:2605.24292)

Half of the orders give ψ for the other half, and the other way round. n texts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Bracket(NamedTuple):
    """Two numbers for each text, between which −log p(x) lies on average, nats, float64 [n] each."""

    upper: Tensor  # −log of the mean of the w_k
    lower: Tensor  # by the tangent; −∞ where the orders differ too much to tell
    effective: Tensor  # (Σ w_k)² / Σ w_k², the effective number of orders


def bracket(nats: Tensor) -> Bracket:
    """Return the bracket of each text from −log w_k of an even number of independent orders, nats, float64 [n, K]."""
    K = nats.shape[1]
    if K < 2 or K % 2:
        raise ValueError("a bracket needs an even number of orders")
    one, other = (half.logsumexp(1) - math.log(K // 2) for half in (-nats).split(K // 2, dim=1))
    apart = other - one
    # The mean of both tangents: log ψ + w/ψ − 1 at ψ of one half and w of the other.
    lower = -((one + other) / 2 + (apart.expm1() + (-apart).expm1()) / 2)
    lower = lower.masked_fill(lower.isnan(), -math.inf)  # of a text that some order cannot write
    total = (-nats).logsumexp(1)
    return Bracket(math.log(K) - total, lower, (2 * total - (-2 * nats).logsumexp(1)).exp())
