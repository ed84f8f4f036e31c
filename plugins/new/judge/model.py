"""The adaptive model of bytes."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import torch

from atat_zoo import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Code:
    """Adaptive Markov model over bytes with additive smoothing (0.5 is the Krichevsky-Trofimov estimator)."""

    title = "placeholder"

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def nats(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the NLL of each text in nats, float64 [n], and the number of bytes in each text, int64 [n]."""
        if not texts:
            raise UserError("there are no texts to judge; pass at least one")
        sizes = [len(text.encode()) for text in texts]
        return torch.tensor([self._cost(text) for text in texts], dtype=torch.float64), torch.tensor(sizes)

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return the relative frequency of each byte in each of n nonempty texts, float32 [n, 256]."""
        if not texts or "" in texts:
            raise UserError("there are no texts, or an empty one, to compare; leave out empty texts")
        counted = [torch.bincount(torch.tensor(list(text.encode())), minlength=256) for text in texts]
        return torch.stack([counts / counts.sum() for counts in counted]).float()

    def _cost(self, text: str) -> float:
        pairs: Counter[tuple[int, int]] = Counter()
        seen: Counter[int] = Counter()
        cost, before = 0.0, 0
        for byte in text.encode():
            chance = (pairs[before, byte] + self.smoothing) / (seen[before] + 256 * self.smoothing)
            cost -= math.log(chance)
            pairs[before, byte] += 1
            seen[before] += 1
            before = byte
        return cost
