"""Key-value caches of backbones. Shapes: B rows, A in a step, C cached tokens, L or T new ones, H heads, width D."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

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


class GenerationState:
    """The state of B sequences of L tokens in a generation: the tokens that have been read, and the cache by layer."""

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        self.known = torch.zeros(batch, length, dtype=torch.bool, device=device)  # bool [B, L]
        self.begun = torch.zeros(batch, 1, dtype=torch.bool, device=device)  # whether the start has been read
        self.count = torch.zeros(batch, dtype=torch.int64)  # cached tokens of each row, on the host
        self.layers: list[list[Tensor]] = []  # keys and values, [B, H, C, D/H] each


class StepCache(Cache):
    """The cache of some rows in a step; the rows may have different numbers of cached tokens.

    New keys and values follow the cached ones of their row. Those of new tokens come first; only they are counted as
    cached, and the others are overwritten in the next step.
    """

    def __init__(self, texts: GenerationState, rows: Tensor | None, host_rows: Tensor, inputs: int) -> None:
        super().__init__()
        device = texts.known.device
        self.texts, self.rows, self.host_rows = texts, rows, host_rows
        self.cached = texts.count[host_rows]  # int64 [A] on the host
        self.width = int(self.cached.max()) + inputs if len(self.cached) else 0
        self.most = self.width - inputs if len(self.cached) else 0
        # If all rows have equally many tokens, as they usually do, a slice is faster than indexing each input.
        self.even = rows is None and bool((self.cached == self.most).all())
        if not self.even:
            self.place = (self.cached[:, None] + torch.arange(inputs)).to(device, non_blocking=True)
            # The input at each place.
            self.input = (torch.arange(self.width) - self.cached[:, None]).to(device, non_blocking=True)

    def __len__(self) -> int:
        """Return C, the largest number of cached tokens in any row."""
        return self.most

    def attention(self, sees: Tensor) -> Tensor | None:
        """Return the attention mask, bool [A, 1, T, C + T], from which new inputs each input attends to, [A, T, T].

        All inputs attend to themselves and to all cached tokens. Without a mask (None), they attend to everything.
        """
        if self.even:
            return None if sees.shape[1] == 1 else F.pad(sees[:, None], (self.most, 0), value=True)
        T = sees.shape[1]
        within = self.input.clamp(0, T - 1)
        new = sees.gather(2, within[:, None].expand(-1, T, -1)) & (within == self.input)[:, None]
        return (new | (self.input < 0)[:, None])[:, None]

    @override
    def join(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        stored, (B, L) = self.texts.layers, self.texts.known.shape
        if layer == len(stored):
            stored.append([new.new_zeros(B, new.shape[1], L + 1, new.shape[3]) for new in (keys, values)])
        if (more := self.width - stored[layer][0].shape[2]) > 0:
            stored[layer] = [F.pad(old, (0, 0, 0, more)) for old in stored[layer]]
        joined, rows = [], move_to(self.rows, keys.device)
        for old, new in zip(stored[layer], (keys, values), strict=True):
            if self.even:
                old[:, :, self.most : self.width] = new
            else:
                own = torch.arange(len(new), device=new.device) if rows is None else rows
                old[own[:, None], :, move_to(self.place, new.device)] = new.transpose(1, 2).to(old.dtype)
            joined.append(old[slice(None) if rows is None else rows, :, : self.width].to(new.dtype))
        return joined[0], joined[1]
