"""The modules of `set_causal` and `strided_causal`, and their denoisers.

Shapes: B rows of a batch, A rows of a step, L positions, T inputs, C cached inputs, width D, N predictions, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from atat_zoo.diffusion.cache import GenerationState, StepCache
from atat_zoo.diffusion.contracts import Denoiser, NoisedBatch, PredictAhead
from atat_zoo.diffusion.dropout import groups_of_sequences
from atat_zoo.diffusion.likelihood_bounds import Estimate, WeightedMask, average
from atat_zoo.diffusion.positions import Where, pairs, to_host
from atat_zoo.diffusion.randomness import fold, interval_index, sequence_keys, stream, uniform
from atat_zoo.diffusion.set_inputs import (
    TokenRoles,
    draft_inputs,
    inverse,
    num_extra_content_tokens,
    query_and_content_tokens,
    token_roles,
)
from atat_zoo.modeling.backbones.ngram_prior_module import neighbours_of
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.modeling.objectives import Batch
from atat_zoo.modeling.objectives.causal_module import AutoregressiveModule
from atat_zoo.modeling.objectives.denoising import (
    DenoisingModule,
    HeadInputs,
    Predictor,
    dense,
    importance_loss,
    metrics,
)
from atat_zoo.modeling.position_sets import StridedPositionSets
from atat_zoo.registry import Context
from atat_zoo.system.devices import move_to


class SetCausalModule(DenoisingModule):
    """The base of the modules here: predicts each token from the tokens of earlier steps."""

    def inputs_in_steps(self, x: Tensor, steps: Tensor, ascending: bool = False) -> HeadInputs:
        """Return the head inputs at every position, [B, L], for tokens with these steps.

        With `ascending` steps, the input at position L provides the last token, and no extra inputs are added.
        """
        hidden = self.hidden_in_steps(x, steps, ascending)
        if self.prior is None:
            return HeadInputs(hidden)
        absent, reach = self.context.mask_id, self.prior.reach
        later = neighbours_of(steps, reach, -1) >= steps[..., None]
        return HeadInputs(hidden, neighbours_of(x, reach, absent).masked_fill(later, absent))

    def hidden_in_steps(self, x: Tensor, steps: Tensor, ascending: bool) -> Tensor:
        """Return the hidden states [B, L, D]; rows that need several extra inputs may take a second forward pass."""
        of = token_roles(x, steps, self.context.mask_id)

        def read(part: TokenRoles, others: int = 0) -> Tensor:
            in_blocks = ascending and self.attends_in_blocks(part.step)  # any other shape would be recompiled
            tokens, positions, attention = query_and_content_tokens(part, self.context.mask_id, others, in_blocks)
            return self.read(tokens, positions=positions, attention=attention, first=part.step.shape[1] - 1)

        if ascending or not len(of.content_only):
            return read(of)
        few = (needed := to_host(of.content_only.sum(1))) < 2
        # Ranks that share weights read all rows in one pass.
        if self.context.sharded or few.all() or not few.any():
            return read(of, num_extra_content_tokens(needed, of))
        groups = [rows.nonzero()[:, 0] for rows in (few, ~few)]
        there = [rows.to(of.step.device, non_blocking=True) for rows in groups]
        parts = [TokenRoles(*(each[rows] for each in of)) for rows in there]
        with_keys = zip(parts, groups, groups_of_sequences(self.backbone, there), strict=True)
        hidden = [read(part, num_extra_content_tokens(needed[rows], part)) for part, rows, _ in with_keys]
        return torch.cat(hidden)[move_to(torch.cat(there).argsort(), self.device)]

    @override
    def head_inputs(self, z: Tensor, t: Tensor | None, documents: Tensor | None = None) -> HeadInputs:
        # All visible tokens are given, and all others come next.
        return self.inputs_in_steps(z, (z == self.context.mask_id).long() - 1, ascending=True)

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        return self.after_the_start(tokens)

    def cross_entropy_in_steps(self, x: Tensor, steps: Tensor) -> Tensor:
        """Return −log p_θ(x_i | x_k, c_k < c_i) of the free tokens, in nats, [B, L]; 0 at all other tokens."""
        where = pairs(steps >= 0)
        return dense(where, self.cross_entropy_at(self.inputs_in_steps(x, steps).at(where), x[where]), x.shape)

    @override
    def denoiser(self) -> Denoiser:
        return SetCausalPredictor(self)


class StridedModule(SetCausalModule, AutoregressiveModule):
    """The module of `strided_causal`, trained on a single order."""

    objective: ClassVar[str] = "strided_causal"

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, stride: int) -> None:
        super().__init__(context, parts, batch_size)
        self.sets = StridedPositionSets(stride=stride)

    @override
    def head_inputs_of(
        self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor, documents: Tensor | None = None
    ) -> HeadInputs:
        steps = self.sets.step_indices(masked, masked.sum(1), torch.zeros_like)
        # A token that is given between others needs an extra input. Training omits these inputs if all tokens are
        # maskable except at the ends and for padding.
        return self.inputs_in_steps(x, steps, ascending=self.training and not self.context.given_between)


class PositionSetsModule(SetCausalModule):
    """The module of `set_causal`, trained on position sets, with given tokens in a fraction of the rows."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        prompt_share: float,
        gap_share: float,
        subset_share: float,
        importance_loss_weight: float,
    ) -> None:
        # The objective has no noise schedule, but the base class requires one.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)
        self.sets, self.shares = parts["position_sets"], (prompt_share, gap_share, subset_share)
        self.importance_loss_weight = importance_loss_weight
        self.estimator, self.curriculum, self.target = parts["estimator"], parts["curriculum"], parts["target"]
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self.follow(curriculum=self.curriculum, target=self.target)

    def given(self, maskable: Tensor, keys: Tensor) -> Tensor:
        """Return a random choice of given tokens, bool [B, L]; at least one maskable token per row stays free."""
        which, first, share = uniform(fold(keys, -2), 3, torch.float64).unbind(1)
        n, number = maskable.sum(1), maskable.cumsum(1) - 1
        length = 1 + (share * n).long()  # number of free tokens, uniform on {1 … n}
        start = (first * (n - length + 1)).long()
        prompt = number < (n - length)[:, None]
        gap = (number < start[:, None]) | (number >= (start + length)[:, None])
        order = uniform(fold(keys, -3), maskable.shape[1], torch.float64).masked_fill(~maskable, -1.0)
        subset = order.argsort(1, descending=True).argsort(1) >= length[:, None]
        ends = torch.tensor(self.shares).cumsum(0).tolist()
        kind = interval_index(which, ends)[:, None]
        return maskable & ((kind == 0) & prompt | (kind == 1) & gap | (kind == 2) & subset)

    def step_indices(self, batch: Batch) -> Tensor:
        """Return random steps for a training batch, int64 [B, L]: −1 for tokens that are given or not maskable."""
        keys = sequence_keys(self.context.seed, "sets", batch.index)
        return self.step_indices_of(
            batch.tokens, batch.maskable, batch.maskable & ~self.given(batch.maskable, keys), keys
        )

    def step_indices_of(self, x: Tensor, maskable: Tensor, free: Tensor, keys: Tensor) -> Tensor:
        """Return the steps, int64 [B, L], of the free positions; they may depend on the visible tokens."""

        def score(masked: Tensor) -> Tensor:
            # Not under no_grad: see `MDLMModule.mask_by_visible_text`.
            return self.importance(torch.where(masked, self.context.mask_id, x), maskable, None).detach()

        return self.sets.step_indices(free, keys, score)

    def state_before_step(self, batch: Batch, steps: Tensor) -> tuple[NoisedBatch, Tensor]:
        """Return the batch before a step drawn at random for each row, and the tokens of that step, bool [B, L]."""
        drawn = uniform(sequence_keys(self.context.seed, "turn", batch.index), 1, torch.float64)
        step = (drawn * (1 + steps.amax(1, keepdim=True))).long()
        masked = steps >= step
        rate = masked.sum(1) / batch.maskable.sum(1).clamp(min=1)
        return self.noised(batch, masked, rate, masked.float(), rate), steps == step

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        # 1. The step of every position.
        steps = self.step_indices(batch)
        free = steps >= 0
        # 2. The network reads each token from the step after the token's own.
        # With a random subset, any token may need an extra input; so it may with tokens given between others.
        ascending = self.sets.ascending and not self.shares[2] and not self.context.given_between
        rate = free.sum(1) / batch.maskable.sum(1).clamp(min=1)
        noised = self.noised(batch, free, torch.ones_like(rate), free.float(), rate)
        read = self.inputs_in_steps(batch.tokens, steps, ascending)
        head_inputs = read.at(noised.where)
        if self.estimator.reads != "z":
            loss, found = self.weighted_loss(head_inputs, noised, noised.p, batch)
            ce = found["cross_entropy"]
            return metrics(noised, ce, loss)
        # 3. The importance of the tokens and the curriculum's weights. With hidden states, each token is scored in the
        # context from which it is predicted; otherwise, tokens masked before some step are scored from the text then.
        if self.estimator.reads_hidden:
            before, coming = noised, free
            importance = self.importance_of(read, noised.z, batch.maskable, None)
        else:
            before, coming = self.state_before_step(batch, steps)
            importance = self.importance(before.z, batch.maskable, None)
        weight = self.curriculum.weights(before, importance.detach(), batch.progress)
        # 4. Logits and cross-entropy of all free positions.
        diffusion, found = self.weighted_loss(head_inputs, noised, torch.where(before.masked, weight, noised.p), batch)
        ce = found["cross_entropy"]
        # 5. The statistics for components with a state and the estimator's loss, at tokens predicted from that text.
        now = attrs.evolve(before, masked=coming, p=coming.float())
        ce_now = torch.where(coming, ce, 0)
        self.observe(now, ce_now)
        distance = importance_loss(importance, *self.target(now, ce_now))
        loss = diffusion + self.importance_loss_weight * distance
        learned = {"importance_loss": distance.detach(), "importance": importance.detach()}
        return metrics(noised, ce, diffusion, loss) | (learned if self.learns_importance else {})

    @override
    def own_bounds(
        self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int, documents: Tensor | None = None
    ) -> dict[str, Estimate]:
        # −log p along the objective's own sets: exact if they draw nothing, otherwise the mean over draws, a bound.
        whole = WeightedMask(masked=maskable, weight=torch.ones_like(keys), t=None)
        keys = fold(keys, stream(0, "sets"))  # separate from the keys for the masks of the first bound
        numbers, where = iter(range(draws)), pairs(maskable)

        def of_draw(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
            steps = self.step_indices_of(x, maskable, maskable, fold(keys, next(numbers)))
            return {"sets": self.cross_entropy_in_steps(x, steps)[where]}

        return average(of_draw, tokens, [whole] * (1 if self.sets.deterministic else draws), self.context.mask_id)


class SetCausalPredictor(Predictor):
    """The denoiser p_θ(x_i | z), given all visible tokens; `begin_generation` returns one that records the steps."""

    scores_visible_tokens = False
    supports_padding = True  # it is read like a mask, which no other input attends to

    def __init__(self, module: DenoisingModule) -> None:
        super().__init__(module)
        self.predicts_ahead = module.backbone.takes_cache

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        if self.module.backbone.takes_cache:
            return IncrementalPredictor(self.module, GenerationState(len(tokens), tokens.shape[1], tokens.device))
        next_step = torch.full_like(tokens[:, 0], -1)
        return RereadingPredictor(self.module, torch.full_like(tokens, _NOT_YET), next_step)


_NOT_YET = torch.iinfo(torch.int64).max  # the step of a token that is not visible yet


class RereadingPredictor(Predictor):
    """The p_θ of `IncrementalPredictor` for a backbone without a cache: every call reads all steps so far.

    It stores the step in which each token was revealed, int64 [B, L], and the next step of each text, int64 [B].
    """

    module: SetCausalModule
    scores_visible_tokens = False

    def __init__(self, module: DenoisingModule, steps: Tensor, next_step: Tensor, rows: Tensor | None = None) -> None:
        super().__init__(module)
        self.steps, self.next_step, self.rows = steps, next_step, rows

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        return self

    @override
    def select(self, rows: Tensor) -> Denoiser:
        own = rows if self.rows is None else self.rows[rows]
        return RereadingPredictor(self.module, self.steps, self.next_step, own)

    @override
    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        tokens, rows = tokens.clamp(max=self.mask_id), slice(None) if self.rows is None else self.rows
        steps, step = self.steps[rows], self.next_step[rows]
        fresh = (tokens != self.mask_id) & (steps == _NOT_YET)
        steps = torch.where(fresh, step[:, None], steps)
        step = torch.where(fresh.any(1) | (step < 0), step + 1, step)
        self.steps[rows], self.next_step[rows] = steps, step
        return self.module.inputs_in_steps(tokens, steps.minimum(step[:, None]))


class IncrementalPredictor(Predictor):
    """The denoiser of sequences during generation: tokens visible at the first call are given, and each call is a step.

    A call reads the tokens that are new since the last call, caches their keys and values, and reads the mask at the
    requested positions. The logits equal those of a forward pass over all steps.
    """

    scores_visible_tokens = False
    predicts_ahead = True

    def __init__(self, module: DenoisingModule, texts: GenerationState, rows: Tensor | None = None) -> None:
        super().__init__(module)
        self.texts, self.rows = texts, rows

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        return self

    @override
    def select(self, rows: Tensor) -> Denoiser:
        if self.rows is None and len(rows) == len(self.texts.known):
            return self
        return IncrementalPredictor(self.module, self.texts, rows if self.rows is None else self.rows[rows])

    @override
    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        tokens, texts, (row, position) = tokens.clamp(max=self.mask_id), self.texts, pairs(where)
        if not len(row):
            return torch.empty(0, self.mask_id, device=tokens.device)
        rows = torch.arange(len(tokens), device=tokens.device) if self.rows is None else self.rows
        fresh = (tokens != self.mask_id) & ~texts.known[rows]
        texts.known[rows] |= fresh
        # Indexed by the positions of the inputs, 0 … L; the start is read first.
        content = torch.cat([~texts.begun[rows], fresh], 1)
        texts.begun[rows] = True
        asked = torch.zeros_like(content).index_put_((row, position), torch.ones_like(row, dtype=torch.bool))
        # Inputs with tokens come first, since they are cached.
        kind = torch.where(content, 0, torch.where(asked, 1, 2))
        new, sizes, host_rows = to_host(torch.stack([content.sum(1), (content | asked).sum(1), rows]))
        count = int(sizes.max()) if len(tokens) else 0
        order = kind.sort(dim=1, stable=True).indices
        positions = order[:, :count]
        sees = content.gather(1, positions)[:, None] | torch.eye(count, dtype=torch.bool, device=order.device)
        read = F.pad(tokens, (1, 0), value=self.mask_id).gather(1, positions)
        cache = StepCache(texts, self.rows, host_rows, count)
        hidden = self.module.read(read, positions=positions, attention=cache.attention(sees), cache=cache)
        texts.count[host_rows] += new  # the other inputs are overwritten in the next step
        head_inputs = HeadInputs(hidden).at((row, inverse(order)[row, position]))
        if self.module.prior is not None:
            near = neighbours_of(tokens, self.module.prior.reach, self.mask_id)
            head_inputs = HeadInputs(head_inputs.hidden, near[row, position])
        return self.log_probs(head_inputs, tokens.device)

    @override
    def predict_ahead(self, tokens: Tensor, steps: Tensor, first: Tensor, length: int) -> PredictAhead:
        inputs = draft_inputs(tokens, steps, first, length, self.mask_id, self.rows)
        self.texts.count[inputs.rows] = inputs.cached  # without drafts
        cache = StepCache(self.texts, self.rows, inputs.rows, inputs.tokens.shape[1])
        seen = cache.attention(inputs.sees)
        hidden = self.module.read(inputs.tokens, positions=inputs.positions, attention=seen, cache=cache)
        reach = 0 if self.module.prior is None else self.module.prior.reach
        # Neighbours of the same or a later step, which the n-gram prior does not read.
        later = neighbours_of(steps, reach, -1) >= steps[..., None] if reach else None
        # For few inputs, the time of the head is that of reading its weights, which is done once for all predictions.
        once = later is None and hidden[..., 0].numel() <= 32
        every = self.log_probs(HeadInputs(hidden), tokens.device) if once else None

        def predict(tokens: Tensor, row: Tensor, position: Tensor, before: Tensor) -> Tensor:
            where = row, inputs.place(row, position, before)
            if every is not None:
                return every[where]
            head_inputs = HeadInputs(hidden).at(where)
            if later is not None:
                near = neighbours_of(tokens, reach, self.mask_id).masked_fill(later, self.mask_id)
                head_inputs = HeadInputs(head_inputs.hidden, near[row, position])
            return self.log_probs(head_inputs, tokens.device)

        return predict
