"""The key-value cache of a backbone. Shapes: B rows, C cached tokens, L new tokens, H heads, width D."""

from __future__ import annotations

import torch
from torch import Tensor

from atat_zoo.system.devices import move_to


class Cache:
    """The keys and values of earlier tokens in every layer, [B, H, C, D/H].

    While the cache `grows`, every forward pass appends its tokens.
    """

    def __init__(self, grows: bool = False) -> None:
        self.grows = grows
        self.layers: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        """Return C, the number of cached tokens."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def join(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's cached keys and values followed by the new ones, which a cache that grows also stores.

        Layers must be joined in order, starting at 0. The keys [B, H, L, D/H] are already rotated (RoPE).
        """
        if layer < len(self.layers):
            old_keys, old_values = self.layers[layer]
            keys, values = torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)
        if self.grows:
            self.layers[layer : layer + 1] = [(keys, values)]
        return keys, values

    def trim(self, tokens: int) -> None:
        """Drop all but the last `tokens` tokens."""
        if len(self) > tokens:
            start = len(self) - tokens
            self.layers = [(keys[:, :, start:].clone(), values[:, :, start:].clone()) for keys, values in self.layers]

    def select(self, rows: Tensor) -> Cache:
        """Return a new cache with copies of the given rows, int64 [A]; it does not grow."""
        cache = Cache()
        for keys, values in self.layers:
            own = move_to(rows, keys.device)
            cache.layers.append((keys[own], values[own]))
        return cache
