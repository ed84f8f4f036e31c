"""The sampler `semi_autoregressive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from atat_zoo.registry import component, param, part
from atat_zoo.registry.spec import fields_of
from atat_zoo.samplers import Observer, Sample, Sampler, shifted
from atat_zoo.samplers.parts import CompositeSampler, FillingSampler, SamplerParts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.contracts import BlockDecoder, Denoiser
    from atat_zoo.experiment import Experiment
    from atat_zoo.samplers.revealed import Revealed


class Block(NamedTuple):
    """The places [start, stop) of a text, and [low, high), the part of the text that is seen with them."""

    start: int
    stop: int
    low: int
    high: int


def blocks_of(length: int, size: int, room: int, begin: int, *, cached: bool) -> list[Block]:
    """Return the blocks of a text of L tokens, from left to right, each in a row that has room for some of them.

    What is cached of a row cannot be moved, so when it is full another one begins with half of its text. A row has
    `begin` tokens before the text, and its blocks begin at multiples of the size, as those of the model do.
    """
    found: list[Block] = []
    low = start = 0
    while start < length:
        if cached:
            low = start - room // 2 if start == low + room else low
            stop = min(start + size - (begin + start - low) % size, low + room, length)
            high = low + room
        else:
            stop = min(start + size, length)
            high = min(max(stop, room), length)
            low = max(0, high - room)
        found.append(Block(start, stop, low, high))
        start = stop
    return found


@component
class SemiAutoregressiveSampler(FillingSampler):
    """Blocks from left to right, each filled by another sampler; texts of any length.

    A model that reads block by block (objectives `block` and `autoregressive`) reads every finished block once and
    caches its keys and values (Arriola et al., arXiv:2503.09573, algorithm 2). That is exact: the distribution is the
    same as when each step reads the complete text. Any other model sees a window of its training length, which ends
    with the block or begins with the text (Sahoo et al., arXiv:2406.07524, section 4.4).

    If every sequence of the training stood between BOS and EOS, each window of a longer text does, and its text is
    between them: they are given and no part of the text. With cached keys a window then does not slide. When it is
    full the next one begins, with the second half of its text, which is read anew.

    An evaluation of a block counts as one. Reading a finished block predicts nothing and is not counted; an
    autoregressive model that reads a token predicts the next, so it makes one pass per token.
    """

    name = "semi_autoregressive"
    summary = "blocks from left to right, each by another sampler; any length, also beyond the training length"
    refs = ("arXiv:2406.07524", "arXiv:2503.09573")
    blockwise = True

    size: int | None = param(None, help="tokens in a block; if none, as in the model, or 32", ge=1)
    steps: int | None = param(None, help="maximum of evaluations, at least one per block; if none, as `within`", ge=1)
    within: Sampler = part("sampler", {"use": "ancestral", "steps": 32}, help="sampler that fills a block")

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield the problems: a sampler within that cannot fill a block."""
        yield from self.misfits()
        if hasattr(self.within, "check"):
            yield from self.within.check(experiment)

    def misfits(self) -> Iterator[str]:
        """Yield a sentence if the sampler within cannot fill a block."""
        name = self.within.name
        if not isinstance(self.within, CompositeSampler):
            yield f'sampler.within: {name!r} cannot be told to fill one block; use = "ancestral", or another of parts'
        elif self.steps is not None and "steps" not in {f.name for f in fields_of(type(self.within))}:
            yield f"sampler.steps: {name!r}, the sampler within, has no number of steps to set; leave sampler.steps out"

    @property
    def uses_importance(self) -> bool:
        """See `Sampler.uses_importance`."""
        return self.within.uses_importance

    @property
    def uncovered(self) -> str | None:
        """See `Sampler.uncovered`: as the sampler within, block by block."""
        return self.within.uncovered

    @property
    def deterministic(self) -> bool:
        """See `Sampler.deterministic`."""
        return self.within.deterministic

    def parts_of(self, block: int, blocks: int) -> SamplerParts:
        """Return the parts that fill a block, with its share of the steps."""
        within: Any = self.within
        if self.steps is not None:
            share = self.steps * (block + 1) // blocks - self.steps * block // blocks
            within = attrs.evolve(within, steps=max(1, share))
        parts: SamplerParts = within.parts()
        return parts

    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, observe: Observer | None, revealed: Revealed | None
    ) -> Sample:
        """See `FillingSampler`.

        Importance is that of a draft of the denoiser's window, or, with a model that reads block by block, of the
        block alone.

        Raises:
            UserError: when the blocks do not fit those of the model, or the sampler within cannot fill a block.
        """
        import torch
        import torch.nn.functional as F

        from atat_zoo.diffusion.positions import to_host
        from atat_zoo.diffusion.randomness import fold
        from atat_zoo.errors import UserError
        from atat_zoo.samplers.loop import run
        from atat_zoo.samplers.revealed import Revealed

        for sentence in self.misfits():
            raise UserError(sentence)
        batch, length = tokens.shape
        own = denoiser.block_size
        size = self.size or own or 32
        if own is not None and own % size:
            raise UserError(f"sampler.size = {size} does not divide the model's blocks of {own} tokens; leave it out")
        window = denoiser.window or max(length, 1)
        # Beyond its length a model that has learned ends would write them wherever it has learned that they stand.
        first, last = denoiser.frame if length > window else ((), ())
        begin, framed = len(first), bool(first or last)
        room = window - begin - len(last) if framed or own is None else length
        if own is None:
            size = min(size, max(room, 1))  # of a larger block, not all places would be seen
        blocks = blocks_of(length, size, room, begin, cached=own is not None)
        z, true = tokens.clone(), revealed
        if framed:
            edge = tokens.new_tensor([*first, *([denoiser.mask_id] * room), *last])
            if revealed is not None:  # its places are those of the text: before it come those of BOS
                pads = (begin, window)
                true = Revealed(F.pad(revealed.tokens, pads), F.pad(revealed.nats, pads))
        masked = to_host((tokens == denoiser.mask_id).any(0)).tolist()
        decoder: BlockDecoder | None = None
        nfe, most, steps, read, row_of = torch.zeros_like(seeds), 0, 0, 0, 0
        for number, (start, stop, low, high) in enumerate(blocks):
            if not any(masked[start:stop]):
                continue
            row = z[:, low:high]
            if framed:
                row = edge.repeat(batch, 1)
                row[:, begin : begin + min(high, length) - low] = z[:, low:high]
            before = low - begin  # place of the row's first token in the text
            if own is not None:
                if decoder is None or low != row_of:
                    decoder, read, row_of = denoiser.begin(batch, window), 0, low
                block = (start - before) // own * own
                if read < block:
                    with torch.no_grad():
                        decoder.read(row[:, read:block])
                    read = block
                row, before = row[:, block : block + own], before + block
            within = torch.zeros_like(row, dtype=torch.bool)
            within[:, start - before : stop - before] = True
            parts = self.parts_of(number, len(blocks))
            observer = observe and shifted(observe, positions=before, steps=steps)
            seen = true and true.at(slice(before + begin, before + begin + row.shape[1]))
            keys = fold(seeds, number)
            sample = run(parts, decoder or denoiser, row, keys, fill=within, observe=observer, revealed=seen)
            z[:, start:stop] = sample.tokens[:, start - before : stop - before]
            nfe, most, steps = nfe + sample.nfe, most + sample.max_nfe, steps + parts.pace.most(stop - start)
        if framed and revealed is not None and true is not None:
            revealed.nats.copy_(true.nats[:, begin : begin + length])
        return Sample(tokens=z, nfe=nfe, max_nfe=most)
