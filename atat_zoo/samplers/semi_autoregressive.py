"""The sampler `semi_autoregressive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


@component
class SemiAutoregressiveSampler(FillingSampler):
    """Blocks from left to right, each filled by another sampler; texts of any length.

    A model that reads block by block (objectives `block` and `autoregressive`) reads every finished block once and
    caches its keys and values (Arriola et al., arXiv:2503.09573, algorithm 2). That is exact: the distribution is the
    same as when each step reads the complete text. Any other model sees a window of its training length, which ends
    with the block or begins with the text (Sahoo et al., arXiv:2406.07524, section 4.4).

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

        from atat_zoo.diffusion.positions import to_host
        from atat_zoo.diffusion.randomness import fold
        from atat_zoo.errors import UserError
        from atat_zoo.samplers.loop import run

        for sentence in self.misfits():
            raise UserError(sentence)
        batch, length = tokens.shape
        own = denoiser.block_size
        size = self.size or own or 32
        if own is not None and own % size:
            raise UserError(f"sampler.size = {size} does not divide the model's blocks of {own} tokens; leave it out")
        window = denoiser.window or max(length, 1)
        blocks = -(-length // size)
        z = tokens.clone()
        padded = torch.nn.functional.pad(tokens == denoiser.mask_id, (0, blocks * size - length))
        open_ = to_host(padded.view(batch, blocks, size).any(2).any(0)).tolist()
        decoder: BlockDecoder | None = denoiser.begin(batch, window) if own is not None and any(open_) else None
        nfe, most, steps, read = torch.zeros_like(seeds), 0, 0, 0
        for block in range(blocks):
            if not open_[block]:
                continue
            start, stop = block * size, min((block + 1) * size, length)
            if decoder is not None and own is not None:
                low = start // own * own
                high = min(low + own, length)
                if read < low:
                    with torch.no_grad():
                        decoder.read(z[:, read:low])
                    read = low
            else:
                high = min(max(stop, window), length)
                low = max(0, high - window)
            within = torch.zeros_like(z[:, low:high], dtype=torch.bool)
            within[:, start - low : stop - low] = True
            parts, seen = self.parts_of(block, blocks), z[:, low:high]
            observer = observe and shifted(observe, positions=low, steps=steps)
            true = revealed and revealed.at(slice(low, high))
            keys = fold(seeds, block)
            sample = run(parts, decoder or denoiser, seen, keys, fill=within, observe=observer, revealed=true)
            z[:, low:high] = sample.tokens
            nfe, most, steps = nfe + sample.nfe, most + sample.max_nfe, steps + parts.pace.most(stop - start)
        return Sample(tokens=z, nfe=nfe, max_nfe=most)
