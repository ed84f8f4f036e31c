"""The bound of `adaptive` without sampling, by all 2^L masks: for small models whose every number is known.

A mask is a number: bit i says whether token i is masked. Legend: B sequences, L tokens, S = 2^L masks (mask 0 hides
nothing and costs nothing), T nodes of a quadrature in time. Weights are logarithms, all arithmetic float64.
"""

import math

import attrs
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from atat_zoo.diffusion.adaptive_bound import log1mexp
from atat_zoo.diffusion.calibration import power_time


def subsets(length):
    """Return every mask by its number, bool [S, L]."""
    return (torch.arange(2**length)[:, None] >> torch.arange(length) & 1).bool()


def look_everywhere(look, x, mask_id):
    """Return CE and log ŵ under every mask, each float64 [B, S, L], zero where nothing is masked; t is not given."""
    B, L = x.shape
    ce, log_reverse = torch.zeros(2, B, 2**L, L, dtype=torch.float64)
    for number, row in enumerate(subsets(L)):
        masked = row.expand(B, L)
        if number:
            seen = look(torch.where(masked, mask_id, x), None, masked, x)
            ce[:, number][masked], log_reverse[:, number][masked] = seen[0].double(), seen[1].double()
    return ce, log_reverse


def log_shares(log_w):
    """Return log(w_i / W_M) for every mask, [..., S, L], −∞ at visible tokens, from log w [..., 1 or S, L]."""
    here = subsets(log_w.shape[-1])
    log_w = torch.where(here, log_w.double(), -torch.inf)
    # Mask 0 has no share at all, and must not become 0/0.
    total = torch.cat([torch.zeros_like(log_w[..., :1, :1]), log_w[..., 1:, :].logsumexp(-1, keepdim=True)], -2)
    return log_w - total


def log_last(log_w):
    """Return log P(M is what is left when |M| tokens are), float64 [B, S], for the order with weights w [B, L]."""
    # P(M) = Σ_{i ∉ M} P(M ∪ {i}) w_i/W_{M ∪ {i}}, from the full set down
    L = log_w.shape[-1]
    shares = log_shares(log_w.unsqueeze(-2))
    found: dict[int, Tensor] = {2**L - 1: torch.zeros_like(shares[:, 0, 0])}
    for number in range(2**L - 2, -1, -1):
        above = [(number | 1 << i, i) for i in range(L) if not number >> i & 1]
        found[number] = torch.stack([found[m] + shares[:, m, i] for m, i in above]).logsumexp(0)
    return torch.stack([found[m] for m in range(2**L)], 1)


def order_form(log_w, ce, log_reverse, *, bracket=True):
    """Return the order form for each sequence, nats, float64 [B]; differentiable.

    From log w [B, L], −log p_θ(x_i | z_M) and log ŵ, [B, S, L] each. Without the bracket of ŵ this is no bound.
    """
    here = subsets(log_w.shape[-1])
    shares, reverse = (torch.where(here, log_shares(w), 0.0) for w in (log_w.unsqueeze(-2), log_reverse))
    cost = ce + (shares - reverse) if bracket else ce
    return (log_last(log_w).exp() * torch.where(here, shares.exp() * cost, 0.0).sum(-1)).sum(-1)


def order_likelihood(ce, log_reverse):
    """Return log p_θ(x) of the reverse process itself, float64 [B]: every order, summed from the full mask down."""
    shares = log_shares(log_reverse)
    found: dict[int, Tensor] = {0: torch.zeros_like(ce[:, 0, 0])}
    for number in range(1, ce.shape[1]):
        ways = [
            shares[:, number, i] - ce[:, number, i] + found[number & ~(1 << i)]
            for i in range(ce.shape[-1])
            if number >> i & 1
        ]
        found[number] = torch.stack(ways).logsumexp(0)
    return found[ce.shape[1] - 1]


@attrs.frozen(kw_only=True, eq=False)
class Path:
    """A forward process in time, at the nodes of a quadrature."""

    weight: Tensor  # of each node, in the measure that the rates are taken in, [T]
    log_masked: Tensor  # log-probability that a token is masked, [T, B, L]
    log_rate: Tensor  # log A_i in that measure, [T, B, L]

    @property
    def log_probability(self):
        """Log-probability of every mask, [T, B, S]."""
        here = subsets(self.log_masked.shape[-1])
        log_masked = self.log_masked.unsqueeze(-2)
        return torch.where(here, log_masked, log1mexp(log_masked)).sum(-1)


def _nodes(points):
    """Return v and the weight dv of a double-exponential rule: v = π sinh y, t = σ(v) (Takahasi and Mori, 1974).

    Its nodes crowd at both ends of (0, 1) faster than any power, whatever singularity t^{w−1} has there.
    """
    y = torch.linspace(-7.0, 3.1, points, dtype=torch.float64)
    return math.pi * y.sinh(), math.pi * y.cosh() * (y[1] - y[0])


def own_time(log_w, points=120):
    """Return the power path in its own time, 1 − α_i = t^{w_i}, in the measure dt/t, where A_i is w_i; log w [B, L]."""
    v, dv = _nodes(points)
    log_w = log_w.double()
    log_masked = log_w.exp() * logsigmoid(v)[:, None, None]
    # t = 1 but for the last digit is t = 1, where the integrand is finite and the weight vanishes.
    rate = log_w.expand_as(log_masked)
    return Path(weight=logsigmoid(-v).exp() * dv, log_masked=log_masked.clamp(max=-1e-300), log_rate=rate)


def calibrated(log_w, points=120):
    """Return the power path with its mask rate r as the time of every sequence: t = τ(r; x), in the measure dr."""
    v, dv = _nodes(points)
    log_w = log_w.double()
    B, L = log_w.shape
    everything = log_w.expand(points, B, L)
    ones = torch.ones(points * B, L, dtype=torch.bool)
    rate = v.sigmoid()[:, None].expand(points, B)
    s = power_time(-everything.reshape(-1, L), rate.reshape(-1), ones).view(points, B, 1)
    log_masked = -(s + log_w).exp()
    log_rate = log_w + math.log(L) - (log_w + log_masked).logsumexp(-1, keepdim=True)
    weight = (logsigmoid(v) + logsigmoid(-v)).exp() * dv
    return Path(weight=weight, log_masked=log_masked.clamp(max=-1e-300), log_rate=log_rate)


def timed_form(path, ce, log_reverse, *, bracket=True):
    """Return the timed form for each sequence, nats, float64 [B]; differentiable.

    From −log p_θ(x_i | z, t) and log Â in the measure of the path, [B, S, L], or [T, B, S, L] for a model that sees
    the time. Without the bracket, A log(A/Â) − A + Â, this is no bound.
    """
    here = subsets(ce.shape[-1])
    log_rate = path.log_rate.unsqueeze(-2)
    rate = log_rate.exp()
    cost = rate * ce
    if bracket:
        cost = cost + rate * (log_rate - log_reverse) - rate + log_reverse.exp()
    inside = torch.where(here, cost, 0.0).sum(-1)
    return (path.weight[:, None, None] * path.log_probability.exp() * inside).sum((0, 2))


def optimum(p, states, log_mask, log_rate):
    """Return CE and log Â of the best model for a forward process: Â = E[A | z], p_θ the A-weighted posterior.

    From the probability of each sequence, [B], all of them, int64 [B, L], log P(M | x), [..., B, S], and log A,
    [..., B, 1 or S, L]. Each is [..., B, S, L], zero at visible tokens.
    """
    here = subsets(states.shape[1])
    agrees = states[:, None] == states[None]  # [B, B, L]
    same = (agrees | here[:, None, None]).all(-1)  # [S, B, B]: the same z
    log_joint = (p.double().log()[:, None] + log_mask).transpose(-1, -2).unsqueeze(-2)  # [..., S, 1, B]
    posterior = log_joint.masked_fill(~same, -torch.inf).log_softmax(-1)  # [..., S, B, B]
    rates = log_rate.expand(*log_mask.shape, states.shape[1]).transpose(-2, -3).unsqueeze(-3)  # [..., S, 1, B, L]
    rates = rates.masked_fill(~here[:, None, None], 0.0)
    weighted = posterior.unsqueeze(-1) + rates
    total = weighted.logsumexp(-2)
    right = weighted.masked_fill(~agrees, -torch.inf).logsumexp(-2)
    shown = here[:, None]
    ce, log_reverse = (torch.where(shown, a, 0.0).transpose(-2, -3) for a in (total - right, total))
    return ce, log_reverse
