"""Estimates of the bound that may be called perplexity: MATH 2.

    NELBO(x) = E_t [ −α'(t)/(1 − α(t)) · Σ_{i masked} −log p_θ(x_i | z_t) ],   uniform masking

`exact_k` and `continuous_t` draw masks, `enumerate_masks` takes all of them (on
toys). They agree on the same sequences within their Monte-Carlo error.
`discrete_t` is the bound of a process with T steps, a different number at each
T, to be held against `enumerate_discrete` at the same T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.randomness import fold, to_unit, uniform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.diffusion.contracts import Denoiser

# (z [B, L], t [B] or None, masked [B, L], x [B, L]) → −log p_θ(x_i | z) at the N masked positions, nats, [N].
CrossEntropy = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]


@attrs.frozen(kw_only=True, eq=False)
class Estimate:
    """A bound per sequence, and the losses that it was made of.

    Attributes:
        contribution: what each token adds to the bound, in nats, float64 [B, L].
        count: maskable tokens n, int64 [B].
        loss_sum: cross-entropy summed over the draws in which a token was masked, float64 [B, L].
        loss_count: in how many draws it was masked, int64 [B, L].
    """

    contribution: Tensor
    count: Tensor
    loss_sum: Tensor
    loss_count: Tensor

    @property
    def nelbo(self) -> Tensor:
        """The bound on −log p(x), nats, float64 [B]."""
        return self.contribution.sum(1)


def from_denoiser(denoise: Denoiser) -> CrossEntropy:
    """Return the losses of a denoiser that gives whole distributions."""

    def losses(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        return -denoise(z, t, masked).gather(1, x[masked][:, None])[:, 0]

    return losses


def exact_k(
    losses: CrossEntropy,
    x: Tensor,
    maskable: Tensor,
    keys: Tensor,
    draws: int,
    *,
    mask_id: int,
    time_at: Callable[[Tensor], Tensor],
) -> Estimate:
    """Estimate the NELBO with k uniform on {1 … n} and exactly k tokens masked: weight n/k on the summed CE.

    k is stratified over the draws of a sequence: k = 1 + ⌊n·(u + j)/draws⌋.

    Args:
        losses: of p_θ.
        x: clean tokens, int64 [B, L].
        maskable: bool [B, L].
        keys: one key a sequence, int64 [B]: the masks are a function of it, so that two models see the same.
        draws: masks per sequence.
        mask_id: m.
        time_at: from mask rate to t, for a denoiser that reads it: t = time_at(k/n) makes it a function of z.
    """
    n = maskable.sum(1)

    def masks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for j, k in enumerate(counts(n, keys, draws)):
            rank = uniform_order(maskable, fold(keys, j))
            masked = (rank < k[:, None]) & maskable
            yield masked, n.double() / k.clamp(min=1), time_at((k / n.clamp(min=1)).float())

    return average(losses, x, n, masks(), draws, mask_id)


def counts(n: Tensor, keys: Tensor, draws: int) -> Iterator[Tensor]:
    """Yield k uniform on {1 … n}, int64 [B], stratified over the draws of a sequence: k = 1 + ⌊n·(u + j)/draws⌋."""
    u = uniform(fold(keys, -1), 1, torch.float64)[:, 0]
    for j in range(draws):
        k = 1 + (n * ((u + j) / draws)).floor().long()
        yield torch.minimum(k, n)  # the product may round up to n


def uniform_order(maskable: Tensor, keys: Tensor) -> Tensor:
    """Return the place of each token in a uniformly random order of the maskable ones, int64 [B, L]; others last."""
    unit = to_unit(fold(keys[:, None], torch.arange(maskable.shape[1], device=maskable.device)), torch.float64)
    return unit.masked_fill(~maskable, 2.0).argsort(1).argsort(1)


def continuous_t(
    losses: CrossEntropy,
    x: Tensor,
    maskable: Tensor,
    keys: Tensor,
    draws: int,
    *,
    mask_id: int,
    time_at: Callable[[Tensor], Tensor],
    alpha: Callable[[Tensor], Tensor],
    weight: Callable[[Tensor], Tensor],
) -> Estimate:
    """Estimate the NELBO with t stratified over a sequence's draws, t_j = 1 − ((u + j)/draws), masks Bernoulli.

    The strata are a sequence's own and not the batch's: sequences stay
    independent, so that the standard error over them is right and no result
    depends on the batch. The variance diverges logarithmically at t → 0, so
    it is harmless only for long sequences.

    Args:
        losses: of p_θ.
        x: clean tokens, int64 [B, L].
        maskable: bool [B, L].
        keys: one key a sequence, int64 [B], for the times and the masks.
        draws: masks per sequence.
        mask_id: m.
        time_at: from mask rate to t, as in `exact_k`.
        alpha: α(t).
        weight: −α'(t)/(1 − α(t)).
    """
    n = maskable.sum(1)
    u = uniform(fold(keys, -1), 1, torch.float64)[:, 0]

    def masks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for j in range(draws):
            t = 1 - (u + j) / draws
            masked = _bernoulli(1 - alpha(t), maskable, fold(keys, j))
            yield masked, weight(t), time_at((masked.sum(1) / n.clamp(min=1)).float())

    return average(losses, x, n, masks(), draws, mask_id)


def discrete_t(
    losses: CrossEntropy,
    x: Tensor,
    maskable: Tensor,
    keys: Tensor,
    draws: int,
    *,
    mask_id: int,
    time_at: Callable[[Tensor], Tensor],
    alpha: Callable[[Tensor], Tensor],
    steps: int,
) -> Estimate:
    """Estimate the bound of T steps: Σ_{i=1..T} β_i · E ΣCE(z_{t_i}), β_i = (α_s − α_t)/(1 − α_t), t = i/T.

    With α(0) = 1 the term i = 1 is the reconstruction. i is stratified over the
    draws of a sequence. A bound for each T, and none of them is the one that is
    called perplexity.

    Args:
        losses: of p_θ.
        x: clean tokens, int64 [B, L].
        maskable: bool [B, L].
        keys: one key a sequence, int64 [B], for the times and the masks.
        draws: masks per sequence.
        mask_id: m.
        time_at: from mask rate to t, as in `exact_k`.
        alpha: α(t).
        steps: T.
    """
    n = maskable.sum(1)

    def masks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for j, i in enumerate(counts(torch.full_like(n, steps), keys, draws)):
            rate = 1 - alpha(i.double() / steps)
            masked = _bernoulli(rate, maskable, fold(keys, j))
            yield masked, steps * reveal(i, steps, alpha), time_at((masked.sum(1) / n.clamp(min=1)).float())

    return average(losses, x, n, masks(), draws, mask_id)


def reveal(i: Tensor, steps: int, alpha: Callable[[Tensor], Tensor]) -> Tensor:
    """Return β_i, the probability with which a masked token is revealed between t = i/T and (i − 1)/T, float64."""
    before, after = (alpha(j.double() / steps) for j in (i, i - 1))
    return (after - before) / (1 - before)


def _bernoulli(rate: Tensor, maskable: Tensor, keys: Tensor) -> Tensor:
    return (uniform(keys, maskable.shape[1], torch.float64) < rate[:, None]) & maskable


def enumerate_masks(
    losses: CrossEntropy, x: Tensor, *, mask_id: int, time_at: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return the NELBO of every sequence exactly, by all 2^L − 1 masks, in nats, float64 [B].

    A mask of k tokens has the weight of exact-k: (n/k) / (n · C(n, k)) = 1 / (k · C(n, k)).
    """
    L = x.shape[1]
    return _enumerated(losses, x, mask_id, time_at, lambda k: 1 / (k * math.comb(L, k)))


def enumerate_discrete(
    losses: CrossEntropy,
    x: Tensor,
    *,
    mask_id: int,
    alpha: Callable[[Tensor], Tensor],
    steps: int,
    time_at: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the bound of T steps of every sequence exactly, by all masks, in nats, float64 [B]; see `discrete_t`."""
    i = torch.arange(1, steps + 1)
    beta, visible = reveal(i, steps, alpha), alpha(i.double() / steps)
    L = x.shape[1]
    return _enumerated(
        losses, x, mask_id, time_at, lambda k: float((beta * (1 - visible) ** k * visible ** (L - k)).sum())
    )


def _enumerated(
    losses: CrossEntropy,
    x: Tensor,
    mask_id: int,
    time_at: Callable[[Tensor], Tensor] | None,
    weight: Callable[[int], float],
) -> Tensor:
    B, L = x.shape
    total = torch.zeros(B, dtype=torch.float64, device=x.device)
    for bits in range(1, 2**L):
        row = torch.tensor([bool(bits >> i & 1) for i in range(L)], device=x.device)
        masked, k = row.expand(B, L), int(row.sum())
        t = None if time_at is None else time_at(torch.full((B,), k / L, device=x.device))
        total += dense_losses(losses, x, masked, t, mask_id).sum(1) * weight(k)
    return total


def average(
    losses: CrossEntropy,
    x: Tensor,
    n: Tensor,
    masks: Iterator[tuple[Tensor, Tensor, Tensor]],
    draws: int,
    mask_id: int,
) -> Estimate:
    """Return the mean over draws of weight · CE.

    Args:
        losses: of p_θ.
        x: clean tokens, int64 [B, L].
        n: maskable tokens, int64 [B].
        masks: for each draw the mask [B, L], its weight ([B], or [B, L] token by token), and t [B].
        draws: how many there are.
        mask_id: m.
    """
    contribution = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    loss_sum = torch.zeros_like(contribution)
    loss_count = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for masked, weight, t in masks:
        ce = dense_losses(losses, x, masked, t, mask_id)
        contribution += (weight if weight.ndim == 2 else weight[:, None]).double() * ce / draws
        loss_sum += ce
        loss_count += masked
    return Estimate(contribution=contribution, count=n, loss_sum=loss_sum, loss_count=loss_count)


def dense_losses(losses: CrossEntropy, x: Tensor, masked: Tensor, t: Tensor | None, mask_id: int) -> Tensor:
    """Return −log p_θ(x_i | z) at masked tokens, float64 [B, L], zero elsewhere."""
    ce = losses(torch.where(masked, mask_id, x), t, masked, x).double()
    return torch.zeros(x.shape, dtype=torch.float64, device=x.device).masked_scatter(masked, ce)
