"""The module of `grid_dit`. Shapes: B sequences, L tokens, H heads of D/H dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.modeling.backbones.dit_module import DiTModule
from atat_zoo.registry import Context
from atat_zoo_images.grid_orders import grid_of

BASE = 100.0  # of the rotation angles; 10,000, as for text, would leave half of them unused on a small grid
NEIGHBOURS = ((0, -1), (-1, 0), (0, 1), (1, 0))  # row and column, relative to a pixel


class GridDiTModule(DiTModule):
    """A `DiTModule` whose rotary positions are rows and columns."""

    def __init__(self, context: Context, *, local_heads: int, **parameters: Any) -> None:
        super().__init__(context, local_heads=local_heads, **parameters)
        head_width = parameters["width"] // parameters["heads"]
        self.rotary = GridRotary(head_width, *grid_of(context.length))
        if local_heads:
            for layer in self.blocks:
                layer.offset = nn.Parameter(local_offset(layer.heads, head_width, local_heads))


class GridRotary(nn.Module):
    """Rotary position embedding by rows and columns: `first` tokens, then pixels in rows of `side`."""

    def __init__(self, head_width: int, first: int, side: int) -> None:
        super().__init__()
        self.first, self.side = first, side
        self.register_buffer("rates", _rates(head_width), persistent=False)
        self.rates: Tensor

    @override
    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines, each [L, 1, 1, D/(2H)], or [B, L, …] for positions [B, L]."""
        pixel = positions - self.first
        place = torch.stack([pixel.div(self.side, rounding_mode="floor"), pixel.remainder(self.side)], -1).float()
        angles = (place[..., None] * self.rates).flatten(-2)[..., None, None, :]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def local_offset(heads: int, width: int, local: int, contrast: float = 5.0) -> Tensor:
    """Return offsets of queries and keys, [2·H·width], with which the first heads attend to a neighbouring pixel.

    As `dit_module.local_offset`, with the logit Σ a² (cos ω(Δrow − δrow) + cos ω(Δcolumn − δcolumn)).
    """
    rates = _rates(width)
    energy = rates * contrast * width**0.5 / (rates * (1 - rates.cos())).sum()
    root, still = energy.sqrt().repeat(2), torch.zeros(width // 2)
    offset = torch.zeros(2, heads, width)
    for head in range(local):
        steps = torch.tensor(NEIGHBOURS[head % 4]) * (1 + head // 4)
        # The logit peaks where the query's position minus the key's is −δ.
        angles = (-steps[:, None] * rates).flatten()
        offset[0, head] = torch.cat([root, still])
        offset[1, head] = torch.cat([root * angles.cos(), root * angles.sin()])
    return offset.flatten()


def _rates(width: int) -> Tensor:
    """Return the rotation angle per row, and per column, for each pair of a head's dimensions, float32 [width/4]."""
    return BASE ** -(torch.arange(0, width, 4, dtype=torch.float32) / width)
