"""Weights that are a function of their name and index, and the networks and texts for which logits are recorded."""

from __future__ import annotations

import zlib
from typing import Any

import torch

# Two shapes of each network: backbone, and the table of the zoo's part; the settings of the published code follow.
DDIT = {
    "small": {"layers": 2, "width": 32, "heads": 2, "condition": 16, "rows": 14},
    "odd": {"layers": 3, "width": 48, "heads": 4, "condition": 24, "rows": 23},
}
LENGTH = {"small": 8, "odd": 12}
BLOCK = 4
SIGMA = (0.3, 2.5)  # of the two rows, where a network reads the time


def fill(name: str, shape: Any) -> torch.Tensor:
    """Return a weight, float64: quasi-random numbers whose phase grows by squares, so that no matrix has a low rank."""
    size = torch.Size(shape)
    index = torch.arange(size.numel(), dtype=torch.float64)
    wave = torch.sin(zlib.crc32(name.encode()) % 10_007 + 0.6180339887 * index * (index + 1)).reshape(size)
    if "norm" in name or name.endswith("ln_f.weight"):
        return 1 + 0.3 * wave
    return wave * (1.5 / size[-1] ** 0.5 if len(size) > 1 else 0.2)


def filled(module: Any, prefix: str = "") -> Any:
    """Fill all parameters of a module by their names."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(fill(name.removeprefix(prefix), weight.shape))
    return module.eval()


def text(shape: str, rows: int, mask: int | None = None) -> torch.Tensor:
    """Return two rows of published ids, in which every third token is the mask."""
    mask = rows - 1 if mask is None else mask
    index = torch.arange(2 * LENGTH[shape]).view(2, -1)
    return torch.where(index % 3 == 1, mask, (index * 7 + index**2) % (rows - 1))


def some(logits: torch.Tensor) -> list[float]:
    """Return 48 of the logits of two rows, spread over all."""
    flat = logits.flatten()
    return [round(float(x), 6) for x in flat[torch.arange(48) * 101 % len(flat)]]
