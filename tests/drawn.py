"""A batch of tokens drawn at random, all of them maskable."""

import torch

from atat_zoo.modeling.objectives import Batch


def drawn_batch(vocabulary, rows, length):
    """Return a batch [rows, length], in the middle of a training."""
    tokens = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    return Batch(
        tokens=tokens,
        maskable=torch.ones_like(tokens, dtype=torch.bool),
        index=torch.arange(rows),
        mean_maskable=torch.tensor(float(length)),
        progress=0.5,
    )
