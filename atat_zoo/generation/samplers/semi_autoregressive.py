"""A sampler that generates sequences of any length block by block, from left to right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
from typing_extensions import override

from atat_zoo.generation.samplers import Observer, Sample, Sampler, shifted
from atat_zoo.generation.samplers.composite import CompositeSampler, FillingSampler
from atat_zoo.registry import component, component_param, param
from atat_zoo.registry.spec import fields_of
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.contracts import BlockDecoder, Denoiser
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing


class Block(NamedTuple):
    """A block of a sequence: the positions [start, stop), and the window [low, high) that the model sees."""

    start: int
    stop: int
    low: int
    high: int


def blocks_of(length: int, size: int, room: int, begin: int, *, cached: bool) -> list[Block]:
    """Return the blocks of up to `size` tokens of a sequence from left to right, each with its window of `room` tokens.

    Keys and values that are `cached` cannot move, so when a window is full, the next window begins with the second half
    of the full one. If `begin` special tokens precede each window, blocks still begin at multiples of the block size,
    counted from the first of these tokens.
    """
    blocks: list[Block] = []
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
        blocks.append(Block(start, stop, low, high))
        start = stop
    return blocks


class _Window:
    """The windows of a sequence for a denoiser, with BOS and EOS if the sequence has several and training had them."""

    decoder: BlockDecoder
    low = -1  # where the row of the decoder begins
    read = 0  # how much of the row it has read

    def __init__(self, denoiser: Denoiser, size: int | None, length: int) -> None:
        """Split L tokens into blocks of a given size, by default the model's block size or 32."""
        self.denoiser, own = denoiser, denoiser.block_size
        self.window = denoiser.window or max(length, 1)
        # Without them, a model trained with BOS and EOS would generate them inside a long text.
        self.first, self.last = denoiser.frame if length > self.window else ((), ())
        self.framed, self.begin = bool(self.first or self.last), len(self.first)
        self.room = self.window - self.begin - len(self.last) if self.framed or own is None else length
        size = size or own or 32
        if own is None:
            size = min(size, max(self.room, 1))  # a window does not contain all positions of a larger block
        self.blocks = blocks_of(length, size, self.room, self.begin, cached=own is not None)

    def show(self, z: Tensor, block: Block) -> tuple[Denoiser, Tensor, int]:
        """Return a block's denoiser, the tokens that it sees, int64 [B, S], and the position of the first token in z.

        A model that reads block by block provides a decoder, which reads each finished block once.
        """
        import torch

        row, before, size = z[:, block.low : block.high], block.low - self.begin, self.denoiser.block_size
        if self.framed:
            edge = z.new_tensor([*self.first, *([self.denoiser.mask_id] * self.room), *self.last])
            text, row = row, edge.repeat(len(z), 1)
            row[:, self.begin : self.begin + text.shape[1]] = text
        if size is None:
            return self.denoiser, row, before
        if block.low != self.low:
            self.decoder, self.low, self.read = self.denoiser.begin(len(z), self.window), block.low, 0
        start = (block.start - before) // size * size
        if self.read < start:
            with torch.no_grad():
                self.decoder.read(row[:, self.read : start])
            self.read = start
        return self.decoder, row[:, start : start + size], before + start


@component
class SemiAutoregressiveSampler(FillingSampler):
    """Blocks from left to right, each filled by an inner sampler; for sequences of any length.

    A model that reads block by block (objectives `block` and `autoregressive`) reads every finished block once and
    caches its keys and values (Arriola et al., arXiv:2503.09573, algorithm 2), which is exact and does not count
    towards the NFE. Any other model sees a window of its training length that ends with the block or begins with the
    sequence (Sahoo et al., arXiv:2406.07524, section 4.4). If training sequences had BOS and EOS, each window of a
    longer sequence also has them, but the result does not. With cached keys a window does not slide: when it is full,
    the next window begins with the second half of the full one, which the model reads again. Importance is estimated
    for a draft of the window or, if keys are cached, of the block only. Blocks share `steps`; each gets at least 1.
    """

    name = "semi_autoregressive"
    summary = (
        "semi-autoregressive: blocks from left to right, each filled by an inner sampler; for sequences of any length"
    )
    refs = ("arXiv:2406.07524", "arXiv:2503.09573")
    blockwise = True

    block_size: int | None = param(None, help="tokens per block; default: the model's block size, or 32", ge=1)
    steps: int | None = param(None, help="maximum total NFE; default: the maximum of `block_sampler` per block", ge=1)
    block_sampler: Sampler = component_param(
        "sampler", {"use": "ancestral", "steps": 32}, help="sampler within a block"
    )

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem | str]:
        yield from list(self.incompatibilities()) or self.block_sampler.check(experiment)

    def incompatibilities(self) -> Iterator[Problem]:
        """Yield a problem if the inner sampler cannot fill a single block, or cannot take a share of `steps`."""
        name = self.block_sampler.name
        if not isinstance(self.block_sampler, CompositeSampler):
            text = f'{name!r} cannot fill a single block; choose a different sampler, such as "ancestral"'
            yield Problem("sampler.block_sampler", text)
        elif self.steps is not None and "steps" not in {f.name for f in fields_of(type(self.block_sampler))}:
            text = f"the block sampler {name!r} does not have a number of steps; remove sampler.steps"
            yield Problem("sampler.steps", text)

    @property
    @override
    def uses_importance(self) -> bool:
        return self.block_sampler.uses_importance

    @property
    @override
    def accepts_padding(self) -> bool:
        return self.steps is None and self.block_sampler.accepts_padding  # blocks of padding would get steps, too

    @property
    @override
    def no_policy_bound_because(self) -> str | None:
        return self.block_sampler.no_policy_bound_because

    @property
    @override
    def deterministic(self) -> bool:
        return self.block_sampler.deterministic

    @override
    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, observe: Observer | None, forced: TeacherForcing | None
    ) -> Sample:
        import torch

        from atat_zoo.diffusion.positions import to_host
        from atat_zoo.diffusion.randomness import fold
        from atat_zoo.generation.samplers.loop import run

        for problem in self.incompatibilities():
            raise UserError(str(problem))
        own = denoiser.block_size
        if own is not None and self.block_size is not None and own % self.block_size:
            wrong = f"sampler.block_size = {self.block_size} does not divide the model's blocks of {own} tokens"
            raise UserError(f"{wrong}; remove it, or set a divisor of {own}")
        view = _Window(denoiser, self.block_size, tokens.shape[1])
        masked = to_host((tokens == denoiser.mask_id).any(0)).tolist()
        z, nfe, most, steps = tokens.clone(), torch.zeros_like(seeds), 0, 0
        for number, block in enumerate(view.blocks):
            if not any(masked[block.start : block.stop]):
                continue
            model, row, first = view.show(z, block)
            here = slice(block.start - first, block.stop - first)
            fill = torch.zeros_like(row, dtype=torch.bool)
            fill[:, here] = True
            within: Any = self.block_sampler
            if self.steps is not None:
                share = self.steps * (number + 1) // len(view.blocks) - self.steps * number // len(view.blocks)
                within = attrs.evolve(within, steps=max(1, share))
            parts, observer = within.parts(), shifted(observe, positions=first, steps=steps)
            text = None if forced is None else forced.at(first)
            sample = run(parts, model, row, fold(seeds, number), fill=fill, observe=observer, forced=text)
            z[:, block.start : block.stop] = sample.tokens[:, here]
            nfe, most = nfe + sample.nfe, most + sample.max_nfe
            steps += parts.tokens_per_step.max_steps_for(block.stop - block.start)
        return Sample(tokens=z, nfe=nfe, max_nfe=most)
