"""The grid of a picture's pixels, and the orders in which they are predicted. Shapes: B rows, L positions, S sets.

The last S² of the L positions are the pixels, row by row, with the largest possible S; its label precedes them.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.generation.samplers.order import Order
from atat_zoo.modeling.position_sets import PositionSets
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step


def grid_of(length: int) -> tuple[int, int]:
    """Return the number of tokens before the first pixel, and the number of rows (= columns), of a sequence."""
    side = math.isqrt(length)
    return length - side * side, side


@functools.cache
def spread_ranks(side: int) -> tuple[int, ...]:
    """Return the rank of each pixel, row by row, in the order in which the Halton sequence first visits it.

    Point n of the sequence has the column and the row given by the digits of n in base 2 and 3, read after the point,
    so any first part of the order is spread evenly over the picture.
    """
    ranks: dict[int, int] = {}
    for n in itertools.count(1):
        if len(ranks) == side * side:
            return tuple(ranks[pixel] for pixel in range(side * side))
        column, row = (int(_radical_inverse(n, base) * side) for base in (2, 3))
        ranks.setdefault(row * side + column, len(ranks))
    raise AssertionError


def _radical_inverse(n: int, base: int) -> float:
    value, share = 0.0, 1.0
    while n:
        share /= base
        n, digit = divmod(n, base)
        value += digit * share
    return value


def steps_by_number(free: Tensor, numbers: list[int]) -> Tensor:
    """Return the decoding step of each free position, int64 [B, L], and −1 elsewhere.

    `numbers` are those of the pixels, row by row; pixels with one number are decoded together, in ascending order, and
    the tokens before the pixels come first. A number without free positions gets no step.
    """
    import torch

    first = free.shape[1] - len(numbers)
    every = [*range(first), *(first + number for number in numbers)]
    number = torch.tensor(every, dtype=torch.int64, device=free.device).expand(free.shape)
    used = torch.zeros(len(free), len(every), dtype=torch.int64, device=free.device)
    used.scatter_add_(1, number, free.long())
    return torch.where(free, ((used > 0).cumsum(1) - 1).gather(1, number), -1)


@component
class SpreadPositionSets(PositionSets):
    """Sets of pixels that are spread evenly over the picture, in the order of the Halton sequence; the label first.

    Each set refines the grid of the earlier ones, as in the scheduler of Besnier et al. (ICLR 2025), so pixels that are
    predicted together are far apart.
    """

    name = "spread"
    summary = "pixels of a square picture spread evenly, by the Halton sequence; the label first"
    refs = ("arXiv:2503.17076", "doi:10.1007/BF01386213")

    deterministic = True

    sets: int = param(16, help="S, the number of sets of pixels", ge=1)

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        side = grid_of(free.shape[1])[1]
        sets = min(self.sets, side * side)
        return steps_by_number(free, [rank * sets // (side * side) for rank in spread_ranks(side)])


@component
class TilesPositionSets(PositionSets):
    """Square tiles in raster order, each predicted at once: block diffusion in two dimensions; the label first."""

    name = "tiles"
    summary = "square tiles of a square picture, row by row, each at once; the label first"
    refs = ("arXiv:2503.09573",)

    deterministic = True

    size: int = param(2, help="rows and columns of a tile", ge=1)

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        side = grid_of(free.shape[1])[1]
        across = -(-side // self.size)
        numbers = [i // side // self.size * across + i % side // self.size for i in range(side * side)]
        return steps_by_number(free, numbers)


@component
class SpreadOrder(Order):
    """Pixels in the order of the position sets `spread`, the label first, for any sampler that combines an order.

    With tokens_per_step `one_at_a_time`, this is an exact order of a masked diffusion model.
    """

    name = "spread"
    summary = "pixels of a square picture spread evenly, by the Halton sequence; the label first"
    refs = ("arXiv:2503.17076",)
    deterministic = True

    def __call__(self, step: Step) -> Tensor:
        """Return the negated rank of each position, float64 [A, L]."""
        import torch

        first, side = grid_of(step.open.shape[1])
        ranks = [*range(-first, 0), *spread_ranks(side)]
        return -torch.tensor(ranks, dtype=torch.float64, device=step.open.device).expand(step.open.shape)
