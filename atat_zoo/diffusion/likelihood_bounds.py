"""Bounds on −log p_θ(x) from weighted masks (docs/explanation/mathematics.md).

    NELBO(x) = E_t [ −α'(t)/(1 − α(t)) · Σ_{i masked} −log p_θ(x_i | z_t) ],   uniform masking

A bound is a sequence of weighted masks; `average` returns the mean of any score of the masked tokens over these masks.
`exact_k` and `continuous_t` draw masks, `all_masks` yields every mask of a short sequence, and the three averages agree
within their Monte-Carlo error. `discrete_t` draws masks for a process with T steps; its bound depends on T. Shapes: B
sequences, L tokens, N masked tokens, n maskable tokens in a sequence. u is a uniform number in [0, 1) per sequence.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.randomness import fold, to_unit, uniform

# (z [B, L], t [B] or None, masked [B, L], x [B, L]) → −log p_θ(x_i | z) at the N masked positions, in nats [N].
CrossEntropy = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]
# The same arguments → a dict of any number of scores, each [N].
Scores = Callable[[Tensor, Tensor | None, Tensor, Tensor], Mapping[str, Tensor]]
# A function of times or of mask rates, [B].
Schedule = Callable[[Tensor], Tensor]


@attrs.frozen(kw_only=True, eq=False)
class WeightedMask:
    """A mask for every sequence of a batch, with its weight in the average."""

    masked: Tensor  #: bool [B, L]
    #: Weight of the summed scores of the masked tokens, [B], or of each token's score, [B, L]. The expected sum of the
    #: weights over the masked tokens is n (a little less for `clipped_t`), so a score of 1 averages to n.
    weight: Tensor
    t: Tensor | None  #: diffusion time for a denoiser that reads it, [B], or None

    @property
    def by_token(self) -> Tensor:
        """The weight of each masked token, float64 [B, L]."""
        weight = self.weight if self.weight.ndim == 2 else self.weight[:, None].expand(self.masked.shape)
        return weight.double()


@attrs.frozen(kw_only=True, eq=False)
class Estimate:
    """The average of a score over the masks of a bound; for the cross-entropy, this is the bound."""

    contribution: Tensor  #: the term of each token, in nats for a bound, float64 [B, L]
    #: The sum of a token's weights over the masks that hide it, divided by the number of masks, float64 [B, L]
    weight: Tensor
    loss_sum: Tensor  #: the score summed over the draws in which a token was masked, float64 [B, L]
    loss_count: Tensor  #: number of draws in which the token was masked, int64 [B, L]
    #: The number of tokens under each of the K masks, int64 [B, K], and the sum of their scores, float64 [B, K]
    of_masks: tuple[Tensor, Tensor] | None = None
    each: Tensor | None = None  #: the score under each of the K masks, float32 [B, K, L], NaN where not masked

    @property
    def nelbo(self) -> Tensor:
        """The bound on −log p(x), in nats, float64 [B]."""
        return self.contribution.sum(1)


def average(
    scores: Scores, x: Tensor, masks: Iterable[WeightedMask], mask_id: int, *, keep: bool = False
) -> dict[str, Estimate]:
    """Return a dict with an `Estimate` for each score, averaged over the masks (at least one); x is int64 [B, L].

    With `keep`, the estimates also hold the score under each mask.
    """
    every = list(masks)
    estimates: dict[str, Estimate] = {}
    each: dict[str, list[Tensor]] = {}
    sums: dict[str, list[Tensor]] = {}
    zero = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    weights, count = zero.clone(), torch.zeros_like(x)
    for mask in every:
        weight = mask.by_token
        weights += torch.where(mask.masked, weight, 0.0) / len(every)
        count += mask.masked
        z = torch.where(mask.masked, mask_id, x)
        for name, values in scores(z, mask.t, mask.masked, x).items():
            if name not in estimates:
                estimates[name] = Estimate(
                    contribution=zero.clone(), weight=weights, loss_sum=zero.clone(), loss_count=count
                )
            score = zero.masked_scatter(mask.masked, values.double())
            estimates[name].contribution.add_(weight * score / len(every))
            estimates[name].loss_sum.add_(score)
            sums.setdefault(name, []).append(score.sum(1))
            if keep:
                each.setdefault(name, []).append(score.float().masked_fill(~mask.masked, torch.nan))
    sizes = torch.stack([mask.masked.sum(1) for mask in every], 1)
    return {
        name: attrs.evolve(
            of, of_masks=(sizes, torch.stack(sums[name], 1)), each=torch.stack(each[name], 1) if keep else None
        )
        for name, of in estimates.items()
    }


def from_denoiser(denoise: Denoiser) -> CrossEntropy:
    """Return a function that computes the cross-entropy of a denoiser at all masked positions."""

    def losses(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        return -denoise(z, t, masked).gather(1, x[masked][:, None])[:, 0]

    return losses


def exact_k(maskable: Tensor, keys: Tensor, draws: int, *, time_at: Schedule) -> Iterator[WeightedMask]:
    """Yield masks of exactly k tokens, with k uniform on {1 … n} and weight n/k.

    k is stratified over the draws of a sequence: in draw j, k = 1 + ⌊n·(u + j)/draws⌋.

    Args:
        maskable: bool [B, L].
        keys: one key per sequence, int64 [B], which determines its masks, so two models see the same masks.
        draws: number of masks per sequence.
        time_at: maps a mask rate to t for a time-conditioned denoiser; t = time_at(k/n) is a function of z.
    """
    n = maskable.sum(1)
    for j, k in enumerate(counts(n, keys, draws)):
        rank = uniform_order(maskable, fold(keys, j))
        yield WeightedMask(
            masked=(rank < k[:, None]) & maskable,
            weight=n.double() / k.clamp(min=1),
            t=time_at((k / n.clamp(min=1)).float()),
        )


def counts(n: Tensor, keys: Tensor, draws: int) -> Iterator[Tensor]:
    """Yield k uniform on {1 … n}, int64 [B], stratified over the draws of a sequence: k = 1 + ⌊n·(u + j)/draws⌋."""
    u = uniform(fold(keys, -1), 1, torch.float64)[:, 0]
    for j in range(draws):
        k = 1 + (n * ((u + j) / draws)).floor().long()
        yield torch.minimum(k, n)  # the product may round up to n


def uniform_order(maskable: Tensor, keys: Tensor) -> Tensor:
    """Return the rank of each token, int64 [B, L], in a uniformly random order of maskable tokens; others come last."""
    unit = to_unit(fold(keys[:, None], torch.arange(maskable.shape[1], device=maskable.device)), torch.float64)
    return unit.masked_fill(~maskable, 2.0).argsort(1).argsort(1)


def block_masks(maskable: Tensor, keys: Tensor, draws: int, size: int) -> Iterator[WeightedMask]:
    """For each draw, yield a mask [B, L] of k_b of the n_b maskable tokens in each block b of `size` tokens.

    L is a multiple of `size`. Weights [B, L] are n_b/k_b, t [B] is a row's mask rate, and k_b is stratified over draws.
    """
    B, L = maskable.shape
    by_block = maskable.view(B, L // size, size)
    n = by_block.sum(2)
    u = uniform(fold(keys, -1), L // size, torch.float64)
    for j in range(draws):
        k = torch.minimum(1 + (n * ((u + j) / draws)).floor().long(), n)
        unit = to_unit(fold(fold(keys, j)[:, None], torch.arange(L, device=keys.device)), torch.float64)
        unit = unit.view_as(by_block).masked_fill(~by_block, 2.0)
        masked = ((unit.argsort(2).argsort(2) < k[..., None]) & by_block).view(B, L)
        weight = (n.double() / k.clamp(min=1)).repeat_interleave(size, dim=1)
        yield WeightedMask(masked=masked, weight=weight, t=masked.sum(1) / maskable.sum(1).clamp(min=1))


def continuous_t(
    maskable: Tensor, keys: Tensor, draws: int, *, time_at: Schedule, alpha: Schedule, weight: Schedule
) -> Iterator[WeightedMask]:
    """Yield Bernoulli masks at times stratified over a sequence's draws, t_j = 1 − ((u + j)/draws).

    Stratification is per sequence, not per batch, so sequences stay independent, the standard error over sequences is
    valid, and no result depends on the batch. The variance diverges logarithmically at t → 0, which is harmless only
    for long sequences. The arguments are those of `exact_k`, α(t) and the weight −α'(t)/(1 − α(t)).
    """
    u = uniform(fold(keys, -1), 1, torch.float64)[:, 0]
    for j in range(draws):
        t = 1 - (u + j) / draws
        yield _bernoulli(1 - alpha(t), weight(t), maskable, fold(keys, j), time_at)


def clipped_t(
    maskable: Tensor, keys: Tensor, draws: int, *, time_at: Schedule, least: float, most: float, batch: int
) -> Iterator[WeightedMask]:
    """Yield Bernoulli masks with probability `most`·t and weight 1/t, with t uniform on [ε, 1] and ε = `least`.

    In each group of `batch` consecutive rows, row i has its t in stratum i, so a row's masks depend on its place in the
    batch; the last group may be smaller. The weights of the masked tokens sum to `most`·n on average, and the
    contribution of t < ε is omitted. The other arguments are as for `exact_k`.
    """
    place = torch.arange(len(keys), device=keys.device)
    group = (len(keys) - place // batch * batch).clamp(max=batch)
    for j in range(draws):
        u = (uniform(fold(keys, -1 - j), 1, torch.float64)[:, 0] + place % batch) / group
        t = least + (1 - least) * u
        masked = (uniform(fold(keys, j), maskable.shape[1], torch.float64) < most * t[:, None]) & maskable
        yield WeightedMask(masked=masked, weight=1 / t, t=time_at((most * t).float()))


def discrete_t(
    maskable: Tensor, keys: Tensor, draws: int, *, time_at: Schedule, alpha: Schedule, steps: int
) -> Iterator[WeightedMask]:
    """Yield masks for Σ_{i=1..T} β_i · E ΣCE(z_t) with T = `steps`, t = i/T, s = (i−1)/T, β_i = (α_s − α_t)/(1 − α_t).

    With α(0) = 1, the term i = 1 is the reconstruction term. i is stratified over the draws of a sequence. Each T gives
    a different bound, whose exponential is not called perplexity. The other arguments are α(t) and those of `exact_k`.
    """
    for j, i in enumerate(counts(torch.full_like(keys, steps), keys, draws)):
        weight = steps * unmask_probability(i, steps, alpha)
        yield _bernoulli(1 - alpha(i.double() / steps), weight, maskable, fold(keys, j), time_at)


def unmask_probability(i: Tensor, steps: int, alpha: Schedule) -> Tensor:
    """Return β_i, the probability that a masked token is revealed between t = i/T and (i − 1)/T, with T = `steps`."""
    before, after = (alpha(j.double() / steps) for j in (i, i - 1))
    return (after - before) / (1 - before)


def _bernoulli(rate: Tensor, weight: Tensor, maskable: Tensor, keys: Tensor, time_at: Schedule) -> WeightedMask:
    """Mask each token with probability `rate` [B]; the denoiser's t follows from the fraction of masked tokens."""
    masked = (uniform(keys, maskable.shape[1], torch.float64) < rate[:, None]) & maskable
    share = masked.sum(1) / maskable.sum(1).clamp(min=1)
    return WeightedMask(masked=masked, weight=weight, t=time_at(share.float()))


def all_masks(x: Tensor, time_at: Schedule | None = None) -> Iterator[WeightedMask]:
    """Yield all 2^L − 1 nonempty masks, weighted so that the average is exactly the NELBO.

    The weight of k masked tokens is (2^L − 1) / (k · C(L, k)). x is int64 [B, L]. Without `time_at`, t = None.
    """
    B, L = x.shape
    for bits in range(1, 2**L):
        row = torch.tensor([bool(bits >> i & 1) for i in range(L)], device=x.device)
        k = int(row.sum())
        # `average` divides by the number of masks.
        weight = 1 / (k * math.comb(L, k)) * (2**L - 1)
        yield WeightedMask(
            masked=row.expand(B, L),
            weight=torch.full((B,), weight, dtype=torch.float64, device=x.device),
            t=None if time_at is None else time_at(torch.full((B,), k / L, device=x.device)),
        )


def enumerate_masks(losses: CrossEntropy, x: Tensor, *, mask_id: int, time_at: Schedule | None = None) -> Tensor:
    """Return the exact NELBO of every sequence by enumerating all masks, in nats, float64 [B]."""
    return average(lambda *at: {"nelbo": losses(*at)}, x, all_masks(x, time_at), mask_id)["nelbo"].nelbo
