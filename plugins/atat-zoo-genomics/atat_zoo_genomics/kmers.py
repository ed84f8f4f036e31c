"""The module of `kmer`. B sequences, L tokens, V predictable ones, R the reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from atat_zoo.modeling.backbones.ngram import neighbours_of

if TYPE_CHECKING:
    from atat_zoo.modeling.estimators import Reads


class KmerModule(nn.Module):
    """Tokens to importance [B, L] in [0, 1]; starts at ½ for every k-mer."""

    reads: Reads = "z"
    reads_time = False

    def __init__(self, vocabulary_size: int, reach: int) -> None:
        super().__init__()
        self.mask_id, self.reach = vocabulary_size, reach
        self.register_buffer("digit", (vocabulary_size + 1) ** torch.arange(2 * reach), persistent=False)
        self.digit: Tensor
        self.table = nn.Embedding((vocabulary_size + 1) ** (2 * reach), 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """See `EstimatorModule`; beyond the ends nothing is visible, as at a mask."""
        kmer = (neighbours_of(tokens, self.reach, self.mask_id) * self.digit).sum(-1)
        return torch.sigmoid(self.table(kmer).squeeze(-1).float())
