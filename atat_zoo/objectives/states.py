"""What the head reads of a place: its hidden state, and the visible neighbours that a backbone's prior reads.

B rows, L tokens, N places, D width, R the reach of the prior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from atat_zoo.diffusion.positions import Where


class States(NamedTuple):
    """Of places [B, L] or [N]."""

    hidden: Tensor  # [..., D]
    beside: Tensor | None = None  # tokens at −1, 1, −2, 2 … ±R, int64 [..., 2R], V where none is visible; None without

    def at(self, where: Where) -> States:
        """Return those of some places; `where` is anything that indexes a tensor."""
        return States(self.hidden[where], None if self.beside is None else self.beside[where])


def offsets(reach: int) -> list[int]:
    """Return −1, 1, −2, 2 … ±R."""
    return [by for distance in range(1, reach + 1) for by in (-distance, distance)]


def beside(tokens: Tensor, reach: int, absent: int) -> Tensor:
    """Return the neighbours of every place of tokens [B, L], `absent` beyond the ends: int64 [B, L, 2R]."""
    length = tokens.shape[1]
    padded = torch.nn.functional.pad(tokens, (reach, reach), value=absent)
    return torch.stack([padded[:, reach + by : reach + by + length] for by in offsets(reach)], dim=2)
