"""A classifier that sums a weight per token. M texts, L tokens, V predictable tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from atat_zoo.tokenizers import TokenizerModel
    from atat_zoo.tokenizers.terms import Terms


class BagOfTokens:
    """log p(class | z) = log σ(bias + Σ_i w(z_i)): `Differentiable`, with an embedding of one number per token."""

    def __init__(self, weights: Tensor, bias: float) -> None:
        """Take the weights [V] and the log-odds of a text of masks, whose weight is 0."""
        self.table = torch.cat([weights, weights.new_zeros(1)]).float()[:, None]
        self.bias = bias

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return log p(class | z), float32 [M], from int64 [M, L]."""
        if self.table.device != tokens.device:
            self.table = self.table.to(tokens.device)
        return F.logsigmoid(self.bias + self.table[:, 0][tokens].sum(1))

    def embedded(self, x: Tensor) -> Tensor:
        """Return the same from [M, L, 1]."""
        return F.logsigmoid(self.bias + x[:, :, 0].sum(1))


def count(
    documents: Iterable[str], tokenizer: TokenizerModel, terms: Terms, length: int
) -> tuple[Tensor, tuple[int, int]]:
    """Return token counts in passages without and with a term, float64 [2, V], and the numbers of these passages."""
    counts = torch.zeros(2, tokenizer.vocabulary_size, dtype=torch.float64)
    passages = [0, 0]
    for document in documents:
        ids = torch.tensor(tokenizer.encode(document), dtype=torch.int64)
        rows = ids[: len(ids) // length * length].view(-1, length)
        named = terms.occurrences(rows).any(1)
        for which in (0, 1):
            mine = rows[named == bool(which)]
            counts[which] += torch.bincount(mine.flatten(), minlength=tokenizer.vocabulary_size)
            passages[which] += len(mine)
    return counts, (passages[0], passages[1])
