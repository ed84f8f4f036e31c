"""Estimates of the bound that may be called perplexity: MATH 2.

    NELBO(x) = E_t [ −α'(t)/(1 − α(t)) · Σ_{i masked} −log p_θ(x_i | z_t) ],   uniform masking

`exact_k` and `continuous_t` draw masks, `enumerate_masks` takes all of them (on
toys). They agree on the same sequences within their Monte-Carlo error.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.randomness import fold, stratified, stream, to_unit, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atat_zoo.diffusion.records import Denoiser


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


def exact_k(
    denoise: Denoiser,
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
        denoise: p_θ.
        x: clean tokens, int64 [B, L].
        maskable: bool [B, L].
        keys: one key a sequence, int64 [B]: the masks are a function of it, so that two models see the same.
        draws: masks per sequence.
        mask_id: m.
        time_at: from mask rate to t, for a denoiser that reads it: t = time_at(k/n) makes it a function of z.
    """
    n = maskable.sum(1)

    def masks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        u = uniform(fold(keys, -1), 1, torch.float64)[:, 0]
        for j in range(draws):
            k = 1 + (n * ((u + j) / draws)).floor().long()
            k = torch.minimum(k, n)  # the product may round up to n
            order = to_unit(fold(fold(keys, j)[:, None], torch.arange(x.shape[1], device=x.device)), torch.float64)
            rank = order.masked_fill(~maskable, 2.0).argsort(1).argsort(1)
            masked = (rank < k[:, None]) & maskable
            yield masked, n.double() / k.clamp(min=1), time_at((k / n.clamp(min=1)).float())

    return _average(denoise, x, n, masks(), draws, mask_id)


def continuous_t(
    denoise: Denoiser,
    x: Tensor,
    maskable: Tensor,
    keys: Tensor,
    draws: int,
    *,
    mask_id: int,
    time_at: Callable[[Tensor], Tensor],
    alpha: Callable[[Tensor], Tensor],
    weight: Callable[[Tensor], Tensor],
    seed: int,
) -> Estimate:
    """Estimate the NELBO with t stratified over the batch: t_j = 1 − ((u + j/B) mod 1), masks Bernoulli(1 − α(t)).

    The variance diverges logarithmically at t → 0, so it is harmless only for
    long sequences; draws of one batch share u and are not independent.

    Args:
        denoise: p_θ.
        x: clean tokens, int64 [B, L].
        maskable: bool [B, L].
        keys: one key a sequence, int64 [B], for the masks.
        draws: masks per sequence.
        mask_id: m.
        time_at: from mask rate to t, as in `exact_k`.
        alpha: α(t).
        weight: −α'(t)/(1 − α(t)).
        seed: what u is a function of, with the number of the draw.
    """
    n = maskable.sum(1)
    B, L = x.shape
    row = torch.arange(B, device=x.device)

    def masks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for j in range(draws):
            # Named by seed and draw: seed + j would give neighbouring seeds all but one of their draws in common.
            t = 1 - stratified(stream(seed, f"time {j}"), row, B, torch.float64)
            masked = (uniform(fold(keys, j), L, torch.float64) < (1 - alpha(t))[:, None]) & maskable
            share = masked.sum(1) / n.clamp(min=1)
            yield masked, weight(t), time_at(share.float())

    return _average(denoise, x, n, masks(), draws, mask_id)


def enumerate_masks(
    denoise: Denoiser, x: Tensor, *, mask_id: int, time_at: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return the NELBO of every sequence exactly, by all 2^L − 1 masks, in nats, float64 [B].

    A mask of k tokens has the weight of exact-k: (n/k) / (n · C(n, k)) = 1 / (k · C(n, k)).
    """
    B, L = x.shape
    total = torch.zeros(B, dtype=torch.float64, device=x.device)
    for bits in range(1, 2**L):
        row = torch.tensor([bool(bits >> i & 1) for i in range(L)], device=x.device)
        masked = row.expand(B, L)
        k = int(row.sum())
        t = None if time_at is None else time_at(torch.full((B,), k / L, device=x.device))
        total += _losses(denoise, x, masked, t, mask_id).sum(1) / (k * math.comb(L, k))
    return total


def _average(
    denoise: Denoiser,
    x: Tensor,
    n: Tensor,
    masks: Iterator[tuple[Tensor, Tensor, Tensor]],
    draws: int,
    mask_id: int,
) -> Estimate:
    contribution = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    loss_sum = torch.zeros_like(contribution)
    loss_count = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for masked, weight, t in masks:
        losses = _losses(denoise, x, masked, t, mask_id)
        contribution += weight.double()[:, None] * losses / draws
        loss_sum += losses
        loss_count += masked
    return Estimate(contribution=contribution, count=n, loss_sum=loss_sum, loss_count=loss_count)


def _losses(denoise: Denoiser, x: Tensor, masked: Tensor, t: Tensor | None, mask_id: int) -> Tensor:
    """Return −log p_θ(x_i | z) at masked tokens, float64 [B, L], zero elsewhere."""
    log_p = denoise(torch.where(masked, mask_id, x), t, masked)
    ce = -log_p.gather(1, x[masked][:, None])[:, 0].double()
    return torch.zeros(x.shape, dtype=torch.float64, device=x.device).masked_scatter(masked, ce)
