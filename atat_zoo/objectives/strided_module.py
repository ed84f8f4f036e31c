"""The training step of strided, and its denoiser. B rows, L tokens, s classes, n tokens of a class, D width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.backbones.cache import Cache
from atat_zoo.backbones.ngram import neighbours_of
from atat_zoo.diffusion.contracts import BlockDecoder, Denoiser
from atat_zoo.diffusion.positions import Where
from atat_zoo.objectives.causal_module import AutoregressiveModule, refuse_gaps
from atat_zoo.objectives.denoising import DenoisingModule, HeadInputs, Predictor
from atat_zoo.objectives.strided import StridedObjective
from atat_zoo.registry import Context


class StridedModule(AutoregressiveModule):
    """A denoiser that reads only the tokens of earlier classes."""

    name = "strided"

    def __init__(
        self, context: Context, parts: Mapping[str, Any], batch_size: int, objective: StridedObjective
    ) -> None:
        super().__init__(context, parts, batch_size)
        self.classes = objective.stride

    @override
    def hidden(self, z: Tensor, t: Tensor | None) -> Tensor:
        """Return hidden states [B, L, D]; position i reads the z_k of earlier classes, as position k + 1 shows."""
        c = torch.arange(z.shape[1], device=z.device) % self.classes
        before = z.roll(1, dims=1).masked_fill(c == 0, self.context.mask_id)
        return self.backbone(before, attention=c[:, None] >= c)

    @override
    def neighbours(self, z: Tensor, reach: int) -> Tensor:
        # Those of earlier classes.
        c, absent = torch.arange(z.shape[1], device=z.device)[None] % self.classes, self.context.mask_id
        theirs = neighbours_of(c, reach, -1)
        return neighbours_of(z, reach, absent).masked_fill(theirs >= c[..., None], absent)

    def denoiser(self) -> Denoiser:
        """Return p_θ(x_i | z) at positions of the first class that has masks."""
        return StridedPredictor(self)


class StridedPredictor(Predictor):
    """p_θ of a module that reads class by class."""

    stride: int

    def __init__(self, module: StridedModule) -> None:
        super().__init__(module)
        self.stride = module.classes

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return SUBS log-probabilities; with `where` a mask, a gap in an earlier class raises `UserError`."""
        if isinstance(where, torch.Tensor):
            refuse_gaps(self, tokens, where, "strided", "the tokens of earlier classes", 'choose the sampler "strided"')
        return super().__call__(tokens, t, where)

    @override
    def begin(self, batch: int, window: int) -> CachedClasses:
        # Reads the mask at the positions of class 0.
        decoder = CachedClasses(self.module, self.stride, window, batch)
        positions = -(-window // self.stride)
        decoder.read(torch.full((batch, positions), self.mask_id, device=self.module.backbone.embedding.weight.device))
        return decoder


class CachedClasses(Predictor, BlockDecoder):
    """Texts whose finished classes are cached as keys and values of every layer.

    Reading the tokens of a class predicts the next one: reading costs a pass of the network over the next class,
    predicting only the head. The logits are those of a pass over the whole text.
    """

    def __init__(self, module: DenoisingModule, stride: int, length: int, batch: int) -> None:
        super().__init__(module)
        self.classes, self.length, self.batch = stride, length, batch
        self.cache, self.start = Cache(), -1
        self.cache.grows = True
        self.last: Tensor
        self.text = torch.full((batch, length), self.mask_id, device=module.backbone.embedding.weight.device)

    @override
    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        # Of the class to predict, [B, n].
        if self.module.prior is None:
            return HeadInputs(self.last)
        near = neighbours_of(self.text, self.module.prior.reach, self.mask_id)
        return HeadInputs(self.last, near[:, self.start :: self.classes])

    @override
    def read(self, tokens: Tensor) -> None:
        # Position i reads the token before it, so the network does not read the last of a text.
        if self.start >= 0:
            self.text[:, self.start :: self.classes] = tokens
        self.start += 1
        positions = torch.arange(self.start, self.length, self.classes, device=tokens.device)
        before = tokens[:, : len(positions)]
        self.last = self.module.backbone(before, positions=positions, cache=self.cache)

    @override
    def of(self, rows: Tensor) -> CachedClasses:
        # It predicts one class and does not read further.
        if len(rows) == self.batch:
            return self
        decoder = CachedClasses(self.module, self.classes, self.length, len(rows))
        decoder.last, decoder.text, decoder.start = self.last[rows], self.text[rows], self.start
        return decoder
