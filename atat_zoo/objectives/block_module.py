"""The training step of `block`. B rows of a micro-batch, N of the global batch, L tokens in K blocks of size S."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atat_zoo.diffusion.bounds import WeightedMask
from atat_zoo.diffusion.contracts import Masked
from atat_zoo.diffusion.randomness import fold, row_keys, stratified, to_unit, uniform
from atat_zoo.objectives.causal import refuse_method
from atat_zoo.objectives.denoisers import BlockPredictor
from atat_zoo.objectives.denoising import DenoisingModule, metrics, normalised, wide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atat_zoo.bounds import Bound
    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


def one_stream(length: int, size: int, device: torch.device) -> Tensor:
    """Return which tokens see which, bool [L, L]: those of their own block and of earlier ones."""
    block = torch.arange(length, device=device) // size
    return block[:, None] >= block


def two_streams(length: int, size: int, device: torch.device) -> Tensor:
    """Return which tokens of [z ; x] see which, bool [2L, 2L], for L noisy tokens and then L clean ones."""
    block = torch.arange(length, device=device) // size
    same, later = block[:, None] == block, block[:, None] > block
    from_noisy = torch.cat([same, later], dim=1)
    from_clean = torch.cat([torch.zeros_like(same), same | later], dim=1)
    return torch.cat([from_noisy, from_clean])


class BlockModule(DenoisingModule):
    """A denoiser that reads its own block with masks and earlier blocks without."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, size: int, weight: str) -> None:
        """Take the parts, and the parameters of `BlockObjective`."""
        super().__init__(context, parts, batch_size)
        self.size, self.weight = size, weight
        # As in the base, over the blocks of the global batch.
        self.strata = batch_size * (context.length // size)
        golden = round(self.strata * 0.618034)
        self.stride = next(s for s in range(max(1, golden), 2 * self.strata + 1) if math.gcd(s, self.strata) == 1)

    def block_times(self, index: Tensor, blocks: int) -> Tensor:
        """Return t, float32 [B, K] in (0, 1], stratified over all blocks of the step; one u in [0, 1) for them."""
        step, row = index // self.batch_size, index % self.batch_size
        stratum = row[:, None] * blocks + torch.arange(blocks, device=index.device)
        keys = row_keys(self.context.seed, "time", step)[:, None]
        return (1 - stratified(keys, stratum * self.stride % self.strata, self.strata, torch.float64)).float()

    def hidden(self, z: Tensor, t: Tensor | None) -> Tensor:
        """Return hidden states [B, L, D] of one stream, whose blocks are read as they are."""
        return self.backbone(z, attention=one_stream(z.shape[1], self.size, z.device))

    def predictions(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        """Return logits of p_θ(x_i | z_b, x_<b) at the masked positions of all blocks, [N, V], in one pass."""
        L = z.shape[1]
        positions = torch.arange(L, device=z.device).repeat(2)
        seen = two_streams(L, self.size, z.device)
        hidden = self.backbone(torch.cat([z, x], dim=1), positions=positions, attention=seen)[:, :L]
        return wide(self.backbone.head(hidden[masked]))

    def mask(self, batch: Batch) -> tuple[Masked, Tensor]:
        """Mask uniformly within every block at its own time; returns the step, and t token by token, [B, L]."""
        x, maskable = batch.tokens, batch.maskable
        t = self.block_times(batch.index, x.shape[1] // self.size).repeat_interleave(self.size, dim=1)
        p = (1 - self.noise.alpha(t)) * maskable
        masked = uniform(row_keys(self.context.seed, "mask", batch.index), x.shape[1]) < p
        rate = p.sum(1) / maskable.sum(1).clamp(min=1)
        z = torch.where(masked, self.context.mask_id, x)
        return Masked(x=x, z=z, masked=masked, maskable=maskable, t=t.mean(1), rate=rate, p=p), t

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the metrics; see `ObjectiveModule`."""
        self.begin(batch)
        step, t = self.mask(batch)
        ce = self.dense_cross_entropy(step)
        weight = self.noise.weight(t) if self.weight == "nelbo" else torch.ones_like(t)
        return metrics(step, ce, normalised(weight * ce, batch))

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> Iterator[WeightedMask]:
        """Return the masks of Σ_b E_{k_b} (n_b/k_b) ΣCE, k_b uniform on {1 … n_b}, all blocks in one pass a draw.

        With one block the masks are those of `exact_k`; with blocks of one token nothing is left to draw, and the
        bound is the likelihood.
        """
        refuse_method(method, "block", "every block is bounded by exact-k")
        return block_masks(maskable, keys, draws, self.size)

    def denoiser(self) -> Denoiser:
        """Return p_θ(x_i | z) at positions of the first block that has masks."""
        return BlockPredictor(self, self.size, "block")


def block_masks(maskable: Tensor, keys: Tensor, draws: int, size: int) -> Iterator[WeightedMask]:
    """Yield for each draw a mask [B, L] with k_b tokens of block b, its weights n_b/k_b [B, L], and the rate [B].

    k_b is stratified over the draws, each block by itself.
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
