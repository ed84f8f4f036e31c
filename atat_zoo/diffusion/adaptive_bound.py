"""The adaptive bound, for masks that depend on the clean sequence (docs/explanation/adaptive-masks.md).

Forward weights w_i > 0 may depend on the clean sequence. At time t, token i is masked with probability t^{w_i}, so in
reverse, tokens are unmasked in a Plackett–Luce order with weights w. From the noisy sequence z, the model predicts
p_θ(x_i | z) and reverse weights ŵ_i. With the masked set M, W_M = Σ_{i∈M} w_i, Ŵ_M likewise and the cross-entropy CE_i
= −log p_θ(x_i | z), there are two bounds on −log p_θ(x):

    order form   E Σ_M Σ_{i∈M} (w_i/W_M) [ CE_i + log (w_i/W_M)/(ŵ_i/Ŵ_M) ]
    timed form   E ∫ Σ_{i∈M} { w_i [ CE_i + log w_i/ŵ_i ] − w_i + ŵ_i } dt/t

The order form ignores the times of the steps and is never above the timed form for the same ŵ and p_θ. Weights are
passed as logarithms, and all arithmetic is in float64. Shapes: B rows, L tokens, N masked tokens in row-major order, n
maskable tokens in a row, of which k are masked, K draws.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.calibration import power_time
from atat_zoo.diffusion.likelihood_bounds import Estimate, Schedule, counts
from atat_zoo.diffusion.randomness import fold, uniform

# (z [B, L], t [B] or None, masked [B, L], x [B, L]) → −log p_θ(x_i | z) and log ŵ_i at the masked positions, each [N].
Look = Callable[[Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]

# The log-weight of an excluded token: its exponential is 0, and unlike for −∞, differences are defined.
_NEVER = -1e30


@attrs.frozen(kw_only=True, eq=False)
class DrawnMask:
    """A mask drawn by a forward process."""

    masked: Tensor  #: M, bool [B, L]
    maskable: Tensor  #: bool [B, L]
    rate: Tensor  #: the fraction k/n of masked tokens (order form) or its expectation r (timed form), float64 [B]
    #: The mask rate from which the model may compute the time: k/n or t, float64 [B]. Unlike r, it does not depend on
    #: the weights of the clean text.
    level: Tensor
    clock: Tensor  #: the state of the draw: arrival times [B, L], or s = log(−log t) [B]


class BoundForm(Protocol):
    """The interface of both forms of the bound: it draws masks and returns their terms of the bound."""

    def units(self, n: Tensor, keys: Tensor, draws: int) -> list[Tensor]:
        """Return the `unit` of each of `draws` calls of `draw`, float64 [B], stratified over a sequence's draws."""

    def draw(self, log_w: Tensor, maskable: Tensor, unit: Tensor, keys: Tensor) -> DrawnMask:
        """Draw a mask from log w [B, L]; `unit`, float64 [B] in [0, 1), sets its rate, and `keys`, [B], its tokens."""

    def terms(self, drawn: DrawnMask, log_w: Tensor, log_reverse: Tensor) -> tuple[Tensor, Tensor]:
        """Return a weight and a bracket for each token, float64 [B, L].

        Σ_i (weight_i · CE_i + bracket_i) is an unbiased estimate of the bound. Weight and bracket are zero where not
        masked, and differentiable with respect to log w and log ŵ, [B, L].
        """

    def log_probability(self, drawn: DrawnMask, log_w: Tensor) -> Tensor:
        """Return log q, the log-probability of the draw given k (or the time), float64 [B], differentiable in log w."""


class OrderForm:
    """The order form: k is uniform on {1 … n}, and M is the last k arrivals of an exponential race with rates w."""

    def units(self, n: Tensor, keys: Tensor, draws: int) -> list[Tensor]:
        """Return numbers that give the k of `likelihood_bounds.exact_k` and, with equal weights w, the same masks."""
        return [(k - 0.5) / n.clamp(min=1) for k in counts(n, keys, draws)]

    def draw(self, log_w: Tensor, maskable: Tensor, unit: Tensor, keys: Tensor) -> DrawnMask:
        """Draw M from the arrival times −log(u_i)/w_i (see `BoundForm`)."""
        n = maskable.sum(1)
        k = torch.minimum(1 + (n * unit).floor().long(), n)
        u = uniform(keys, maskable.shape[1], torch.float64)
        arrival = (-u.log()).log() - log_w.detach().double()
        arrival = arrival.masked_fill(~maskable, -torch.inf)
        rank = (-arrival).argsort(1).argsort(1)
        masked = (rank < k[:, None]) & maskable
        share = k / n.clamp(min=1).double()
        return DrawnMask(masked=masked, maskable=maskable, rate=share, level=share, clock=arrival)

    def terms(self, drawn: DrawnMask, log_w: Tensor, log_reverse: Tensor) -> tuple[Tensor, Tensor]:
        """Return n·w_i/W_M and n·(w_i/W_M)·log (w_i/W_M)/(ŵ_i/Ŵ_M) (see `BoundForm`)."""
        n = drawn.maskable.sum(1, keepdim=True)
        log_share, log_reverse_share = (_log_share(w, drawn.masked) for w in (log_w, log_reverse))
        weight = n * torch.where(drawn.masked, log_share.exp(), 0.0)
        return weight, weight * (log_share - log_reverse_share)

    def log_probability(self, drawn: DrawnMask, log_w: Tensor) -> Tensor:
        """Return the Plackett–Luce log-probability of the first n − k arrivals, in order (see `BoundForm`)."""
        order = drawn.clock.masked_fill(~drawn.maskable, torch.inf).argsort(1)
        falling = log_w.double().masked_fill(~drawn.maskable, _NEVER).gather(1, order)
        rest = falling.flip(1).logcumsumexp(1).flip(1)
        visible = (drawn.maskable & ~drawn.masked).gather(1, order)
        return torch.where(visible, falling - rest, 0.0).sum(1)


class TimedForm:
    """The timed form: tokens are masked independently at the time t at which the mean of t^{w_i} is the rate r.

    The integral is over t. It is evaluated at the t of a rate r that is uniform on (0, 1], because uniform t would give
    infinite variance with weights below 1. Neither t nor dt/dr has a gradient. The variance still diverges
    logarithmically as r → 0, like that of `likelihood_bounds.continuous_t`, so the order form needs fewer draws.
    """

    def units(self, n: Tensor, keys: Tensor, draws: int) -> list[Tensor]:
        """Return (u + j)/draws for each draw j, with one u in [0, 1) per sequence (see `BoundForm`)."""
        u = uniform(fold(keys, -1), 1, torch.float64)[:, 0]
        return [(u + j) / draws for j in range(draws)]

    def draw(self, log_w: Tensor, maskable: Tensor, unit: Tensor, keys: Tensor) -> DrawnMask:
        """Draw M by masking each token with probability t^{w_i} (see `BoundForm`)."""
        log_w = log_w.detach().double()
        rate = 1 - unit.double()
        s = power_time(-log_w, rate, maskable)
        masked = (uniform(keys, maskable.shape[1], torch.float64) < _log_masked(s, log_w).exp()) & maskable
        return DrawnMask(masked=masked, maskable=maskable, rate=rate, level=(-s.exp()).exp().clamp(min=1e-9), clock=s)

    def terms(self, drawn: DrawnMask, log_w: Tensor, log_reverse: Tensor) -> tuple[Tensor, Tensor]:
        """Return n·w_i/S and n·(w_i log(w_i/ŵ_i) − w_i + ŵ_i)/S with S = Σ_j w_j t^{w_j} (see `BoundForm`)."""
        n = drawn.maskable.sum(1, keepdim=True)
        log_w = log_w.double()
        with torch.no_grad():
            speed = log_w + _log_masked(drawn.clock, log_w)
            log_s = speed.masked_fill(~drawn.maskable, _NEVER).logsumexp(1, keepdim=True)
            log_s = torch.where(n > 0, log_s, 0.0)
        # For visible tokens, exp could overflow and turn their gradient of zero into NaN.
        log_w = torch.where(drawn.masked, log_w - log_s, 0.0)
        log_reverse = torch.where(drawn.masked, log_reverse.double() - log_s, 0.0)
        weight = n * torch.where(drawn.masked, log_w.exp(), 0.0)
        excess = n * torch.where(drawn.masked, log_reverse.exp(), 0.0) - weight
        return weight, weight * (log_w - log_reverse) + excess

    def log_probability(self, drawn: DrawnMask, log_w: Tensor) -> Tensor:
        """Return the sum of the Bernoulli log-probabilities at the time t (see `BoundForm`)."""
        log_p = _log_masked(drawn.clock, log_w.double())
        # 1 − t^w underflows only at a visible token that was almost certain to be masked, never drawn in practice.
        log_p = torch.where(drawn.masked, log_p, log1mexp(log_p.clamp(max=-1e-300)))
        return torch.where(drawn.maskable, log_p, 0.0).sum(1)


FORMS: dict[str, BoundForm] = {"order": OrderForm(), "timed": TimedForm()}


def estimate(
    form: BoundForm,
    look: Look,
    x: Tensor,
    maskable: Tensor,
    log_w: Tensor,
    keys: Tensor,
    draws: int,
    *,
    mask_id: int,
    time_at: Schedule,
) -> Estimate:
    """Return an estimate of one form of the bound on clean sequences.

    With equal weights w and ŵ, the order form equals the average over the masks of `likelihood_bounds.exact_k` with the
    same keys. `look` returns CE and log ŵ at the masked positions of z; x, the clean tokens, and log w are [B, L]; the
    other arguments are those of `exact_k`.
    """
    zero = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    contribution, weights, loss_sum, loss_count = zero.clone(), zero.clone(), zero.clone(), torch.zeros_like(x)
    for j, unit in enumerate(form.units(maskable.sum(1), keys, draws)):
        drawn = form.draw(log_w, maskable, unit, fold(keys, j))
        masked = drawn.masked
        values = look(torch.where(masked, mask_id, x), time_at(drawn.level.float()), masked, x)
        ce, log_reverse = (zero.masked_scatter(masked, a.double()) for a in values)
        weight, bracket = form.terms(drawn, log_w, log_reverse)
        contribution += (weight * ce + bracket) / draws
        weights += weight / draws
        loss_sum += ce
        loss_count += masked
    return Estimate(contribution=contribution, weight=weights, loss_sum=loss_sum, loss_count=loss_count)


def forward_surrogate(bound: Tensor, log_q: Tensor) -> Tensor:
    """Return a scalar per row with the gradient of the bound with respect to the forward weights.

    ∇E_q f = E[∇f + (f − b) ∇log q], where b is the mean of f over the other draws of the same sequence at the same k or
    t (Kool et al., 2019); E[∇f] by itself would have the wrong sign. f is `bound`, the sum Σ_i (weight_i · CE_i +
    bracket_i) for each of K ≥ 2 draws, and log_q holds their log-probabilities; both are [K, B]. The value of the
    result, [B], is the mean of f. Raises a `ValueError` for a single draw.
    """
    if len(bound) < 2:
        raise ValueError("a leave-one-out baseline needs at least two draws per sequence")
    f = bound.detach()
    score = (f - f.mean(0)) * len(f) / (len(f) - 1)
    return (bound + score * (log_q - log_q.detach())).mean(0)


def log1mexp(a: Tensor) -> Tensor:
    """Return log(1 − exp(a)) for a < 0, accurate at both ends."""
    near = a > -0.693
    # Each branch gets only arguments from its own side, so that neither spoils the other's gradient.
    large, small = (-torch.expm1(torch.where(near, a, -0.5))).log(), torch.log1p(-torch.where(near, -1.0, a).exp())
    return torch.where(near, large, small)


def _log_share(log_w: Tensor, masked: Tensor) -> Tensor:
    """Return log(w_i / W_M) at masked tokens, zero elsewhere, float64 [B, L]."""
    share = log_w.double().masked_fill(~masked, _NEVER).log_softmax(1)
    return torch.where(masked, share, 0.0)


def _log_masked(s: Tensor, log_w: Tensor) -> Tensor:
    """Return log t^{w_i} for s = log(−log t) [B], float64 [B, L]."""
    # At e^300, the probability is already 0; beyond, its gradient would be 0 · ∞.
    return -(s[:, None] + log_w).clamp(max=300.0).exp()
