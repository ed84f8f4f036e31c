"""Batches under given masks, for parts that read no text."""

import torch

from atat_zoo.diffusion.contracts import NoisedBatch


def noised(masked, rate=None, maskable=None):
    """Text of zeros under a mask, bool [B, L]: all of it maskable, at the rate that the mask has, unless given."""
    masked = torch.as_tensor(masked)
    maskable = torch.ones_like(masked) if maskable is None else torch.as_tensor(maskable)
    rate = masked.float().mean(1) if rate is None else torch.as_tensor(rate)
    x = torch.zeros(masked.shape, dtype=torch.int64)
    p = rate[:, None] * maskable
    return NoisedBatch(x=x, z=x + masked, masked=masked, maskable=maskable, t=rate, rate=rate, p=p)
