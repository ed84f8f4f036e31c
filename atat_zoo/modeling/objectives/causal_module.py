"""The modules of the objectives `block` and `autoregressive`, and their denoisers.

Shapes: B rows of a micro-batch, L tokens in K blocks of S, width D, V predictable tokens, N positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from atat_zoo.data.sample_order import golden_stride
from atat_zoo.diffusion.attention import Rule, attention_mask
from atat_zoo.diffusion.cache import Cache, GenerationState, StepCache
from atat_zoo.diffusion.contracts import BlockDecoder, Denoiser, NoisedBatch, NoiseLevels
from atat_zoo.diffusion.likelihood_bounds import WeightedMask, block_masks
from atat_zoo.diffusion.positions import Where, document_starts, pairs, to_host
from atat_zoo.diffusion.randomness import sequence_keys, stratified, uniform
from atat_zoo.modeling.backbones.ngram_prior_module import neighbours_of
from atat_zoo.modeling.bounds import Bound
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.modeling.objectives import Batch
from atat_zoo.modeling.objectives.denoising import DenoisingModule, HeadInputs, Predictor, metrics
from atat_zoo.registry import Context
from atat_zoo.system.devices import exact_device, move_to
from atat_zoo.system.errors import UserError


def one_stream(length: int, size: int, device: torch.device) -> Tensor:
    """Return the attention mask, bool [L, L]: a token sees its own block of `size` tokens and earlier blocks."""
    block = torch.arange(length, device=device) // size
    return block[:, None] >= block


def two_streams(length: int, size: int) -> Rule:
    """Return the rule, for `attention_mask`, of L noisy tokens z followed by L clean tokens x, in blocks of `size`.

    A noisy token sees the noisy tokens of its block and the clean tokens of earlier blocks; a clean token sees the
    clean tokens of its own and earlier blocks.
    """

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own, other = query % length // size, key % length // size
        noisy, of_noisy = query < length, key < length
        return torch.where(of_noisy, noisy & (own == other), (own > other) | (~noisy & (own == other)))

    return sees


class BlockModule(DenoisingModule):
    """The module of `block`: predicts masked tokens from the noisy block and the clean earlier blocks."""

    objective: ClassVar[str] = "block"

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        block_size: int,
        weight: Literal["nelbo", "simple"],
    ) -> None:
        super().__init__(context, parts, batch_size)
        self.size, self.weight = block_size, weight
        self.follow(rates=self.rates)
        # As in the base class, but over the blocks of the global batch.
        self.strata = batch_size * (context.length // self.size)
        self.stride = golden_stride(self.strata)

    def block_times(self, index: Tensor, blocks: int) -> Tensor:
        """Return t, float32 [B, K] in (0, 1], stratified over all blocks of a step (see `DenoisingModule.times`)."""
        step, row = index // self.batch_size, index % self.batch_size
        stratum = row[:, None] * blocks + torch.arange(blocks, device=index.device)
        keys = sequence_keys(self.context.seed, "time", step)[:, None]
        return (1 - stratified(keys, stratum * self.stride % self.strata, self.strata, torch.float64)).float()

    @override
    def hidden(self, z: Tensor, t: Tensor | None, documents: Tensor | None = None) -> Tensor:
        # With one stream, every block reads z, even in earlier blocks.
        return self.read(z, attention=one_stream(z.shape[1], self.size, z.device))

    @override
    def head_inputs_of(
        self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor, documents: Tensor | None = None
    ) -> HeadInputs:
        # For p_θ(x_i | z_b, x_<b) at the positions of all blocks, in one pass.
        L = z.shape[1]
        positions = torch.arange(L, device=z.device).repeat(2)
        seen = attention_mask(two_streams(L, self.size), None, 2 * L, z.device, in_blocks=self.attends_in_blocks(z))
        hidden = self.read(torch.cat([z, x], dim=1), positions=positions, attention=seen, first=L)
        near = None if self.prior is None else self.neighbours(z, self.prior.reach, x)
        return HeadInputs(hidden, near)

    @override
    def neighbours(self, z: Tensor, reach: int, x: Tensor | None = None) -> Tensor:
        # Earlier blocks are read from x if given, and later ones not at all.
        position = torch.arange(z.shape[1], device=z.device)[None]
        own, block = position[..., None] // self.size, neighbours_of(position, reach, -1) // self.size
        earlier = neighbours_of(z if x is None else x, reach, self.context.mask_id)
        within = torch.where(block < own, earlier, super().neighbours(z, reach))
        return within.masked_fill(block > own, self.context.mask_id)

    def mask(self, batch: Batch) -> tuple[NoisedBatch, NoiseLevels]:
        """Mask every block uniformly at its own rate; return the noisy batch and the blocks' noise levels, [B, K]."""
        x, maskable = batch.tokens, batch.maskable
        levels = self.levels(self.block_times(batch.index, x.shape[1] // self.size), batch)
        p = levels.rate.repeat_interleave(self.size, dim=1) * maskable
        masked = uniform(sequence_keys(self.context.seed, "mask", batch.index), x.shape[1]) < p
        rate = p.sum(1) / maskable.sum(1).clamp(min=1)
        return self.noised(batch, masked, levels.t.mean(1), p, rate), levels

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        noised, levels = self.mask(batch)
        weight = levels.weight if self.weight == "nelbo" else torch.ones_like(levels.t)
        weight = weight.repeat_interleave(self.size, dim=1)
        loss, found = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch)
        ce = found["cross_entropy"]
        # The blocks are B·K rows, each with its own rate and time.
        by_token = ("x", "z", "masked", "maskable", "p")
        blocks = {name: getattr(noised, name).reshape(-1, self.size) for name in by_token}
        self.observe(NoisedBatch(**blocks, t=levels.t.flatten(), rate=levels.rate.flatten()), ce.view(-1, self.size))
        return {**metrics(noised, ce, loss), "rates": levels.rate}

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> Iterator[WeightedMask]:
        # An estimate of Σ_b E_{k_b} (n_b/k_b) ΣCE, k_b uniform on {1 … n_b}: `exact_k` in every block.
        refuse_method(method, self.objective, "the bound is estimated with exact-k in every block")
        return block_masks(maskable, keys, draws, self.size)

    @override
    def denoiser(self) -> Denoiser:
        return BlockPredictor(self, self.size)


class AutoregressiveModule(DenoisingModule):
    """The module of `autoregressive`: predicts each token from the tokens before it."""

    objective: ClassVar[str] = "autoregressive"

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        # The objective has no noise schedule, but the base class requires one.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)

    @override
    def hidden(self, z: Tensor, t: Tensor | None, documents: Tensor | None = None) -> Tensor:
        # Position i has read the start and z_j, j < i.
        start = torch.full_like(z[:, :1], self.context.mask_id)
        shifted = torch.cat([start, z[:, :-1]], dim=1)
        if documents is not None:
            shifted = shifted.masked_fill(document_starts(documents), self.context.mask_id)
        return self.read(shifted, **self.seen(documents, causal=True))

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        return self.after_the_start(tokens, attention="causal")

    @override
    def neighbours(self, z: Tensor, reach: int) -> Tensor:
        # Only the neighbours to the left.
        position = torch.arange(z.shape[1], device=z.device)[None]
        later = neighbours_of(position, reach, -1) > position[..., None]
        return super().neighbours(z, reach).masked_fill(later, self.context.mask_id)

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        # Every maskable token is treated as masked.
        batch = self.begin(batch)
        ones = torch.ones(len(batch.tokens), device=batch.tokens.device)
        noised = self.noised(batch, batch.maskable, ones, batch.maskable.float(), ones)
        loss, found = self.weighted_loss(self.masked_hidden_states(noised), noised, noised.p, batch)
        ce = found["cross_entropy"]
        return metrics(noised, ce, loss)

    @override
    def head_inputs_of(
        self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor, documents: Tensor | None = None
    ) -> HeadInputs:
        # Each position reads the clean text before it.
        return self.head_inputs(x, None, documents)

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> list[WeightedMask]:
        # One mask of every token: the chain rule gives −log p_θ(x) exactly, without draws.
        refuse_method(method, self.objective, "the likelihood is exact")
        return [WeightedMask(masked=maskable, weight=torch.ones_like(keys), t=None)]

    @override
    def denoiser(self) -> Denoiser:
        return AutoregressivePredictor(self, 1)


class BlockPredictor(Predictor):
    """The denoiser p_θ of a module that reads block by block."""

    module: BlockModule | AutoregressiveModule
    block_size: int

    def __init__(self, module: DenoisingModule, block_size: int) -> None:
        super().__init__(module)
        self.block_size = block_size

    @override
    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        # If `where` is a mask, a gap in an earlier block is refused.
        if isinstance(where, Tensor):
            turn = self.step_of(torch.arange(tokens.shape[1], device=tokens.device))
            assert turn is not None
            first = torch.where(tokens == self.mask_id, turn, tokens.shape[1]).amin(1)
            if bool((where & (turn > first[:, None])).any()):
                raise UserError(
                    f"objective {self.module.objective!r} predicts a token from the tokens before it, but the sampler "
                    "requests a token after a gap; use a causal sampler, such as left_to_right or semi_autoregressive"
                )
        return super().__call__(tokens, t, where)

    @override
    def begin(self, batch: int, window: int) -> CachedBlocks:
        return CachedBlocks(self.module, self.block_size, window, batch)


class CachedBlocks(Predictor, BlockDecoder):
    """A block decoder that caches the keys and values of finished blocks.

    Up to `window` tokens, the logits equal those of a forward pass over the whole sequence (Arriola et al.,
    arXiv:2503.09573, section 3.2). Beyond that, every block sees the last `window` tokens up to its own end; their
    cached keys and values still depend on earlier tokens. A backbone without a cache rereads the whole text.
    """

    def __init__(self, module: DenoisingModule, size: int, window: int, batch: int) -> None:
        super().__init__(module)
        self.size, self.seen, self.batch = size, window, batch
        self.cache, self.start = Cache(), 0
        self.before = torch.full((batch, self.reach), self.mask_id, device=exact_device(module.device))
        self.takes_cache = module.backbone.takes_cache
        self.text = self.before[:, :0]  # what has been read, unless it is cached

    @override
    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        self.cache.grows = False
        return HeadInputs(self.pass_through(tokens), self.neighbours(tokens))

    def neighbours(self, tokens: Tensor) -> Tensor | None:
        """Return the visible neighbours of the next tokens, int64 [B, L, 2R], or None without an n-gram prior."""
        if self.module.prior is None:
            return None
        near = neighbours_of(torch.cat([self.before, tokens], dim=1), self.module.prior.reach, self.mask_id)
        return near[:, self.reach :]

    @property
    def reach(self) -> int:
        """The number of earlier tokens that the n-gram prior reads."""
        return 0 if self.module.prior is None else min(self.module.prior.reach, self.seen - self.size)

    @override
    def read(self, tokens: Tensor) -> None:
        tokens = tokens.clamp(max=self.mask_id)  # padding, which no token follows
        self.cache.grows = True
        self.last = self.pass_through(tokens)[:, -1:]
        if not self.takes_cache:
            self.text = torch.cat([self.text, tokens], dim=1)
        self.start += tokens.shape[1]
        self.cache.trim(self.seen - self.size)
        text = torch.cat([self.before, tokens], dim=1)
        self.before = text[:, text.shape[1] - self.reach :]

    def pass_through(self, inputs: Tensor) -> Tensor:
        """Return the hidden states [B, L, D] of the next tokens; a block sees the window up to its own end."""
        tokens = torch.cat([self.text, inputs], dim=1)
        length, end = tokens.shape[1], self.start + inputs.shape[1]
        position = torch.arange(end - length - len(self.cache), end, device=inputs.device)
        mask = None
        if length > self.size:
            end_of_block = (position[-length:, None] // self.size + 1) * self.size
            mask = (position < end_of_block) & (position >= end_of_block - self.seen)
        cached: dict[str, Any] = {"cache": self.cache} if self.takes_cache else {}
        hidden = self.module.read(tokens, positions=position[-length:], attention=mask, **cached)
        return hidden[:, -inputs.shape[1] :]

    @override
    def select(self, rows: Tensor) -> CachedBlocks:
        if len(rows) == self.batch:
            return self
        decoder = CachedBlocks(self.module, self.size, self.seen, len(rows))
        decoder.cache, decoder.start = self.cache.select(rows), self.start
        decoder.before, decoder.text = self.before[rows], self.text[rows]
        return decoder


class AutoregressivePredictor(BlockPredictor):
    """The denoiser p_θ of an autoregressive model, with blocks of one token."""

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        if not self.module.backbone.takes_cache:
            return self
        return NextTokenPredictor(self, GenerationState(len(tokens), tokens.shape[1], tokens.device))

    @override
    def begin(self, batch: int, window: int) -> CachedTokens:
        # Reads the start.
        decoder = CachedTokens(self.module, 1, window, batch)
        decoder.read(torch.full((batch, 1), self.mask_id, device=exact_device(self.module.device)))
        return decoder


class CachedTokens(CachedBlocks):
    """A decoder with blocks of one token: `read` runs the network, and a prediction applies only the head."""

    @override
    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        return HeadInputs(self.last, self.neighbours(tokens))

    @override
    def select(self, rows: Tensor) -> CachedTokens:
        # It predicts one token and does not read further.
        if len(rows) == self.batch:
            return self
        decoder = CachedTokens(self.module, 1, self.seen, len(rows))
        decoder.last, decoder.before = self.last[move_to(rows, self.last.device)], self.before[rows]
        return decoder


class NextTokenPredictor(AutoregressivePredictor):
    """The denoiser of sequences during generation, which predicts the first mask of each row and caches what it reads.

    The logits equal those of a forward pass of the `whole` denoiser, which predicts any other positions.
    """

    def __init__(self, whole: AutoregressivePredictor, texts: GenerationState, rows: Tensor | None = None) -> None:
        super().__init__(whole.module, 1)
        self.whole, self.texts, self.rows = whole, texts, rows

    @override
    def select(self, rows: Tensor) -> Denoiser:
        if self.rows is None and len(rows) == len(self.texts.known):
            return self
        return NextTokenPredictor(self.whole, self.texts, rows if self.rows is None else self.rows[rows])

    @override
    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        row, position = pairs(where)
        rows = torch.arange(len(tokens), device=tokens.device) if self.rows is None else self.rows
        first = (tokens != self.mask_id).long().cumprod(1).sum(1)
        others = torch.zeros_like(first).index_add(0, row, (position != first[row]).long())
        host_rows, stop, others = to_host(torch.stack([rows, first, others]))
        if others.any():
            return self.whole(tokens, t, where)
        # The inputs are the start and the tokens before the first mask, from the last of which it is predicted. Shorter
        # rows also read later tokens, whose keys and values the next step overwrites.
        start = self.texts.count[host_rows]
        count, begin = int((stop + 1 - start).max()), start.to(tokens.device, non_blocking=True)
        positions = (begin[:, None] + torch.arange(count, device=tokens.device)).clamp(max=tokens.shape[1])
        read = F.pad(tokens.clamp(max=self.mask_id), (1, 0), value=self.mask_id).gather(1, positions)
        cache = StepCache(self.texts, self.rows, host_rows, count)
        sees = torch.ones(len(tokens), count, count, dtype=torch.bool, device=tokens.device).tril()
        hidden = self.module.read(read, positions=positions, attention=cache.attention(sees), cache=cache)
        self.texts.count[host_rows] = stop + 1
        head_inputs = HeadInputs(hidden).at((row, (first - begin)[row]))
        if self.module.prior is not None:
            near = self.module.neighbours(tokens, self.module.prior.reach)[row, position]
            head_inputs = HeadInputs(head_inputs.hidden, near)
        return self.log_probs(head_inputs, tokens.device)


def refuse_method(method: Bound, objective: str, why: str) -> None:
    """Raise a `UserError` if the bound follows a noise schedule; `why` says what the objective does instead."""
    if method.follows_noise:
        raise UserError(
            f"evaluation.bound: {method.name!r} does not apply to objective {objective!r}, where {why}; "
            "use exact_k, or omit --bound"
        )
