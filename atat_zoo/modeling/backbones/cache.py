"""The keys and values of tokens that a backbone has read. B rows, C tokens so far, H heads, D width."""

from __future__ import annotations

import torch
from torch import Tensor

from atat_zoo.system.devices import move_to


class Cache:
    """Keys and values of every layer, [B, H, C, D/H], of tokens that later ones attend to.

    Tokens that are read are added to it while it `grows`.
    """

    def __init__(self, grows: bool = False) -> None:
        self.grows = grows
        self.layers: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        """Return C."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def join(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's keys and values, followed by those of the new tokens; a cache that grows stores them.

        The layers come in turn, from 0; the keys [B, H, L, D/H] are turned to their positions.
        """
        if layer < len(self.layers):
            old_keys, old_values = self.layers[layer]
            keys, values = torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)
        if self.grows:
            self.layers[layer : layer + 1] = [(keys, values)]
        return keys, values

    def trim(self, tokens: int) -> None:
        """Forget all but the last tokens."""
        if len(self) > tokens:
            start = len(self) - tokens
            self.layers = [(keys[:, :, start:].clone(), values[:, :, start:].clone()) for keys, values in self.layers]

    def select(self, rows: Tensor) -> Cache:
        """Return the cache of some of the rows, int64 [A]."""
        cache = Cache()
        for keys, values in self.layers:
            own = move_to(rows, keys.device)
            cache.layers.append((keys[own], values[own]))
        return cache
