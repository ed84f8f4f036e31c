"""Denoisers of models that read a text block by block. B rows, L tokens, N positions asked for, D width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atat_zoo.backbones.cache import Cache
from atat_zoo.diffusion.contracts import BlockDecoder
from atat_zoo.objectives.causal import refuse_gaps
from atat_zoo.objectives.denoising import Predictor

if TYPE_CHECKING:
    from atat_zoo.diffusion.positions import Where
    from atat_zoo.objectives.denoising import DenoisingModule


class BlockPredictor(Predictor):
    """p_θ of a module that reads block by block."""

    def __init__(self, module: DenoisingModule, block_size: int, objective: str) -> None:
        super().__init__(module)
        self.size, self.block_size, self.objective = block_size, block_size, objective

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return SUBS log-probabilities; with `where` a mask, a position behind a gap raises `UserError`."""
        if isinstance(where, Tensor):
            refuse_gaps(tokens, where, self.mask_id, self.size, self.objective)
        return super().__call__(tokens, t, where)

    def begin(self, batch: int, window: int) -> CachedBlocks:
        """Begin a batch of texts; see `Denoiser`."""
        return CachedBlocks(self.module, self.size, window, batch)


class CachedBlocks(Predictor, BlockDecoder):
    """Texts whose finished blocks are cached as keys and values of every layer.

    Within the window the logits are those of the text read anew (Arriola et al., arXiv:2503.09573, section 3.2).
    Behind it every block sees the last `window` tokens up to its own end, as many as the model has learned from; what
    those have seen of tokens before them, they have seen.
    """

    def __init__(self, module: DenoisingModule, size: int, window: int, batch: int) -> None:
        super().__init__(module)
        self.size, self.seen, self.batch = size, window, batch
        self.cache, self.start = Cache(), 0

    def hidden(self, tokens: Tensor, t: Tensor | None) -> Tensor:
        """Return hidden states [B, S, D] of the block that comes next, which sees itself and what was read."""
        self.cache.grows = False
        return self.pass_through(tokens)

    def read(self, tokens: Tensor) -> None:
        """Read finished blocks; see `BlockDecoder`."""
        self.cache.grows = True
        self.pass_through(tokens)
        self.start += tokens.shape[1]
        self.cache.trim(self.seen - self.size)

    def pass_through(self, inputs: Tensor) -> Tensor:
        """Return hidden states [B, L, D] of what comes next, each block of it seeing itself and those before."""
        length = inputs.shape[1]
        position = torch.arange(self.start - len(self.cache), self.start + length, device=inputs.device)
        mask = None
        if length > self.size:
            end = (position[-length:, None] // self.size + 1) * self.size
            mask = (position < end) & (position >= end - self.seen)
        hidden: Tensor = self.module.backbone(inputs, positions=position[-length:], attention=mask, cache=self.cache)
        return hidden

    def of(self, rows: Tensor) -> CachedBlocks:
        """Return the denoiser of some of the rows, int64 [A]."""
        if len(rows) == self.batch:
            return self
        some = type(self)(self.module, self.size, self.seen, len(rows))
        some.cache, some.start = self.cache.of(rows), self.start
        return some


class AutoregressivePredictor(BlockPredictor):
    """p_θ of a model that reads the start, and then a text shifted by one, in blocks of one."""

    def __init__(self, module: DenoisingModule) -> None:
        super().__init__(module, 1, "autoregressive")

    def begin(self, batch: int, window: int) -> CachedTokens:
        """Begin a batch of texts, by reading the start; see `Denoiser`."""
        return CachedTokens(self.module, window, batch)


class CachedTokens(CachedBlocks):
    """Reading a token predicts the next one: a prediction costs the head alone, and reading the network."""

    def __init__(self, module: DenoisingModule, window: int, batch: int, last: Tensor | None = None) -> None:
        super().__init__(module, 1, window, batch)
        if last is None:
            embedding = module.backbone.embedding.weight
            start = torch.full((batch, 1), module.context.mask_id, device=embedding.device)
            self.read(start)
        else:
            self.last = last

    def hidden(self, tokens: Tensor, t: Tensor | None) -> Tensor:
        """Return hidden states [B, 1, D] of the token before the one that is asked for."""
        return self.last

    def read(self, tokens: Tensor) -> None:
        """Read finished tokens; see `BlockDecoder`."""
        self.cache.grows = True
        self.last = self.pass_through(tokens)[:, -1:]
        self.start += tokens.shape[1]
        self.cache.trim(self.seen - 1)

    def of(self, rows: Tensor) -> CachedTokens:
        """Return the denoiser of some of the rows, int64 [A]."""
        if len(rows) == self.batch:
            return self
        return CachedTokens(self.module, self.seen, len(rows), self.last[rows])
