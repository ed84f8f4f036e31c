"""The modules of masked diffusion, read from top to bottom: times, masks, forward pass, losses, and the `mdlm` loss.

`DenoisingModule` defines the bound and whatever else all objectives with a denoiser p_θ(x_i | z) share; `MDLMModule` is
the module of `mdlm`, and `Predictor` is the denoiser of a trained module.

Shapes: B rows of a micro-batch, L tokens, N selected positions (in `times`, N rows of the global batch), V predictable
tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, cast

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.data.sample_order import Repetition
from atat_zoo.diffusion.attention import attention_mask, document_rule
from atat_zoo.diffusion.chunks import in_chunks, rows_for, weighted_sum, wide
from atat_zoo.diffusion.contracts import Denoiser, NoisedBatch, NoiseLevels, StatefulComponent
from atat_zoo.diffusion.dropout import set_keys
from atat_zoo.diffusion.likelihood_bounds import Estimate, WeightedMask, average
from atat_zoo.diffusion.positions import Where, pairs, positions_in_documents
from atat_zoo.diffusion.randomness import sequence_keys, stratified, uniform
from atat_zoo.modeling.backbones import BackboneModule
from atat_zoo.modeling.backbones.ngram_prior_module import NGramPriorModule, neighbours_of
from atat_zoo.modeling.bounds import Bound
from atat_zoo.modeling.curricula import ExponentialWeighting
from atat_zoo.modeling.estimators import EstimatorModule
from atat_zoo.modeling.mask_rates import MaskRates, NoiseRates
from atat_zoo.modeling.masking import StepwiseMaskingModule, VisibleTextMasking
from atat_zoo.modeling.noise import Noise
from atat_zoo.modeling.objectives import Batch, ObjectiveModule, Observer
from atat_zoo.registry import Context
from atat_zoo.registry.spec import complete
from atat_zoo.system.devices import exact_device, has_float64, move_to
from atat_zoo.system.errors import UserError

Losses = Callable[..., dict[str, Tensor]]


class HeadInputs(NamedTuple):
    """The inputs of the head at positions [B, L] or [N]; R is the reach of the n-gram prior.

    The hidden states are on the network's device, the neighbours on the device of the tokens.
    """

    hidden: Tensor  # [..., D]
    neighbours: Tensor | None = None  # visible neighbours, int64 [..., 2R], as in `neighbours_of`; None without a prior

    def at(self, where: Where) -> HeadInputs:
        """Return the inputs at some positions; `where` is any tensor index."""
        hidden = self.hidden[move_to(where, self.hidden.device)]
        return HeadInputs(hidden, None if self.neighbours is None else self.neighbours[where])


class DenoisingModule(nn.Module, ObjectiveModule):
    """An `ObjectiveModule` whose subclasses define `loss`: the stages of a loss in order, then the denoiser's bound.

    Networks are on the device of the weights, and their results are moved to the device of the tokens. Times, masks,
    weights and components with a float64 state are on a device that supports float64 (see `atat_zoo.system.devices`).
    """

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        super().__init__()
        self.context, self.batch_size = context, batch_size
        self.backbone: Any = parts["backbone"]  # a `BackboneModule` that is also an `nn.Module`
        complete(self.backbone, BackboneModule)
        if "estimator" in parts:
            complete(parts["estimator"], EstimatorModule)
        self.noise: Noise = parts["noise"]
        self.rates: MaskRates = parts.get("mask_rates", NoiseRates())
        # Set by the modules of objectives that use them.
        self.estimator: Any = None
        self.curriculum: Any = None
        self.repetition = Repetition(batch_size)
        self.follow()

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `to` and similar methods call this. A float64 state stays where it is if the device does not support float64.
        everywhere = has_float64(fn(torch.empty(0)).device)
        for part in self.children():
            if everywhere or not any(buffer.dtype == torch.float64 for buffer in part.buffers()):
                part._apply(fn)
        return super()._apply(fn, recurse=False)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        return self.backbone.embedding.weight.device

    def begin(self, batch: Batch) -> Batch:
        """Set the dropout keys of a training step, and return the batch on a device that supports float64."""
        if self.training:
            set_keys(self, move_to(sequence_keys(self.context.seed, "dropout", batch.index), self.device))
        if (exact := exact_device(batch.tokens.device)) == batch.tokens.device:
            return batch
        return Batch(**{name: move_to(each, exact) for name, each in attrs.asdict(batch, recurse=False).items()})

    # Times and noise levels

    def times(self, index: Tensor) -> Tensor:
        """Return t_j = 1 − ((u + j/N) mod 1), float32 [B] in (0, 1]; all rows of a step share one u in [0, 1).

        Mask rates are computed from these numbers. Rows take the strata j in strides of about N/φ, with the golden
        ratio φ, so in every micro-batch, times cover (0, 1], and the number of masked positions, which determines the
        memory for logits, is about equal. A sequence that is used by K steps has a time in each of K equal intervals,
        in descending order.
        """
        place = self.repetition.place(index)
        keys = sequence_keys(self.context.seed, "time", index // self.batch_size)
        within = stratified(keys, place.stratum, self.batch_size, torch.float64)
        return (1 - (place.stage + within) / self.repetition.times).float()

    def levels(self, u: Tensor, batch: Batch) -> NoiseLevels:
        """Return the noise levels for u, [B] or [B, K] in (0, 1], at the batch's progress (see `MaskRates.levels`)."""
        return self.rates.levels(u, self.noise, batch.progress)

    # Masks

    @override
    def importance(self, tokens: Tensor, maskable: Tensor, t: Tensor | None) -> Tensor:
        if self.estimator.reads_hidden:
            return self.importance_of(self.head_inputs(tokens, t), tokens, maskable, t)
        own, t, maskable = move_to((tokens, t, maskable), self.device)
        vectors = self.backbone.embedding(own).detach()
        if self.estimator.reads_ngram_scores and self.prior is not None:
            near = neighbours_of(own, self.prior.reach, self.context.mask_id)
            scores = self.prior.token_scores(own.flatten(), near.flatten(0, 1)).view(*own.shape, -1)
            vectors = torch.cat([vectors, scores.to(vectors.dtype)], dim=-1)
        return move_to(self.estimator(own, vectors, t, maskable), tokens.device)

    def importance_of(self, read: HeadInputs, tokens: Tensor, maskable: Tensor, t: Tensor | None) -> Tensor:
        """Return the importance [B, L] from an estimator that reads hidden states; `read` holds all positions."""
        own, t, maskable = move_to((tokens, t, maskable), self.device)
        vectors = read.hidden
        if read.neighbours is not None:  # the hidden state need not represent what the prior adds to the logits
            information = self.backbone.prior.information(move_to(read.neighbours, self.device))
            vectors = torch.cat([vectors, information.to(vectors.dtype)], dim=-1)
        return move_to(self.estimator(own, vectors.detach(), t, maskable), tokens.device)

    def noised(self, batch: Batch, masked: Tensor, t: Tensor, p: Tensor, rate: Tensor | None = None) -> NoisedBatch:
        """Return the noisy batch for a mask sampled with probabilities p, both [B, L]; `rate` defaults to 1 − α(t)."""
        z = torch.where(masked, self.context.mask_id, batch.tokens)
        rate = 1 - self.noise.alpha(t) if rate is None else rate
        x, maskable, documents = batch.tokens, batch.maskable, batch.documents
        return NoisedBatch(x=x, z=z, masked=masked, maskable=maskable, t=t, rate=rate, p=p, documents=documents)

    def masked_uniformly(self, batch: Batch, t: Tensor, rate: Tensor | None = None) -> NoisedBatch:
        """Return the noisy batch, each maskable token masked with probability `rate`, [B], by default 1 − α(t)."""
        rate = 1 - self.noise.alpha(t) if rate is None else rate
        p = rate[:, None] * batch.maskable
        keys = sequence_keys(self.context.seed, "mask", batch.index)
        return self.noised(batch, uniform(keys, p.shape[1]) < p, t, p, rate)

    # Forward: from noisy tokens to what the head reads

    def masked_hidden_states(self, noised: NoisedBatch) -> HeadInputs:
        """Return the head inputs [N] at the masked positions of a batch."""
        return self.hidden_states(noised).at(noised.where)

    def hidden_states(self, noised: NoisedBatch) -> HeadInputs:
        """Return the head inputs [B, L] at all positions of a batch."""
        return self.head_inputs_of(noised.z, noised.t, noised.masked, noised.x, noised.documents)

    def head_inputs_of(
        self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor, documents: Tensor | None = None
    ) -> HeadInputs:
        """Return the head inputs [B, L] at every position, from which the masked tokens are predicted.

        The arguments are those of `cross_entropy`. With `documents`, the document number of each token, int64 [B, L],
        tokens attend only within their own document.
        """
        return self.head_inputs(z, t, documents)

    def head_inputs(self, z: Tensor, t: Tensor | None, documents: Tensor | None = None) -> HeadInputs:
        """Return the head inputs [B, L] at every position of z."""
        near = None if self.prior is None else self.neighbours(z, self.prior.reach)
        return HeadInputs(self.hidden(z, t, documents), near)

    def read(self, *inputs: Tensor, first: int | None = None, **more: Any) -> Tensor:
        """Return the backbone's hidden states [B, L, D], on its device; the inputs may be on a different device.

        With `first`, return only the hidden states of that many leading tokens.
        """
        if first is not None and self.backbone.returns_first:
            more["first"] = first
        given = {name: move_to(each, self.device) for name, each in more.items()}
        hidden: Tensor = self.backbone(*move_to(inputs, self.device), **given)
        return hidden if first in (None, hidden.shape[1]) else hidden[:, :first]

    def seen(self, documents: Tensor | None, causal: bool = False) -> dict[str, Any]:
        """Return arguments of `read`: positions and attention within documents, if there are any, or `"causal"`."""
        if documents is None:
            return {"attention": "causal"} if causal else {}
        rule, blocks = document_rule(documents, causal=causal), self.attends_in_blocks(documents)
        rows, length = documents.shape
        seen = attention_mask(rule, rows, length, documents.device, in_blocks=blocks)
        return {"positions": positions_in_documents(documents), "attention": seen}

    def attends_in_blocks(self, tokens: Tensor) -> bool:
        """Return whether a forward pass uses a `BlockMask`: compiled training on a GPU, if the backbone takes it."""
        in_blocks: bool = self.context.compiled and self.backbone.takes_block_masks
        return in_blocks and self.training and tokens.is_cuda

    def hidden(self, z: Tensor, t: Tensor | None, documents: Tensor | None = None) -> Tensor:
        """Return the hidden states [B, L, D] of z; t defaults to the time matching the fraction of masked tokens."""
        seen = self.seen(documents)
        if not self.backbone.reads_time:
            return self.read(z, **seen)
        if t is None:
            t = self.noise.time_at((z == self.context.mask_id).float().mean(1))
        return self.read(z, t.float(), **seen)

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        return move_to(self.hidden(tokens, torch.zeros(len(tokens), device=tokens.device)), tokens.device)

    def after_the_start(self, tokens: Tensor, **how: Any) -> Tensor:
        """Return the hidden states [B, L, D] of tokens shifted by one position, with a start token in front."""
        read = torch.cat([torch.full_like(tokens[:, :1], self.context.mask_id), tokens], dim=1)
        positions = torch.arange(read.shape[1], device=read.device)
        return move_to(self.read(read, positions=positions, **how)[:, 1:], tokens.device)

    @property
    def prior(self) -> NGramPriorModule | None:
        """The backbone's n-gram prior, or None."""
        return self.backbone.prior

    def neighbours(self, z: Tensor, reach: int) -> Tensor:
        """Return the neighbours that the prediction of each position may read, int64 [B, L, 2R]; V if absent."""
        return neighbours_of(z, reach, self.context.mask_id)

    # Losses: from what the head reads to a scalar, some positions at a time

    def logits(self, head_inputs: HeadInputs, x: Tensor | None = None) -> Tensor:
        """Return the logits [N, V] of N positions, float32 or wider.

        If the true tokens x [N] are given, as in training, the n-gram prior leaves their own occurrences uncounted.
        """
        logits = wide(self.backbone.head(head_inputs.hidden))
        if head_inputs.neighbours is None:
            return logits
        return cast("Tensor", self.backbone.prior(logits, move_to(head_inputs.neighbours, logits.device), x))

    def of_head_inputs(self, losses: Losses) -> Losses:
        """Return `losses`, a function of logits, as a function of hidden states, neighbours, true tokens and others."""

        def losses_of(hidden: Tensor, neighbours: Tensor | None, x: Tensor, *others: Tensor) -> dict[str, Tensor]:
            logits = self.logits(HeadInputs(hidden, neighbours), x if self.training else None)
            return losses(logits, x, hidden, *others)

        return losses_of

    def compile_losses(self, losses: Losses) -> Losses:
        """Return the losses, compiled for a varying number of positions if the context asks for compilation."""
        return torch.compile(losses, dynamic=True) if self.context.compiled else losses

    def chunked_losses(self, head_inputs: HeadInputs, x: Tensor, losses: Losses, *others: Tensor) -> dict[str, Tensor]:
        """Return a dict of the losses at N positions with true tokens x, each [N], computed in chunks.

        `losses` is a function of logits [n, V], tokens [n], hidden states [n, D] and `others` [n].
        """
        hidden, neighbours = head_inputs
        rows = rows_for(self.context.vocabulary_size, hidden.device)
        read = move_to((neighbours, x, *others), hidden.device)
        found = in_chunks(self.of_head_inputs(losses), rows, hidden, *read)
        return {name: move_to(values, x.device) for name, values in found.items()}

    def weighted_loss(
        self,
        head_inputs: HeadInputs,
        noised: NoisedBatch,
        weight: Tensor,
        batch: Batch,
        losses: Losses | None = None,
        *others: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return Σ weight · loss / Σ maskable (see `normalised`), and the other values of the losses, each [B, L].

        Because the weights do not depend on the losses, chunks are as fast as a single pass (see `weighted_sum`). The
        weights [B, L] and `others` receive no gradient, and the other values have none. `losses` is as in
        `chunked_losses` and returns `"loss"` and `"cross_entropy"`; by default, both are the cross-entropy.
        """
        where, shape, losses = noised.where, noised.x.shape, losses or cross_entropy
        x, hidden = noised.x[where], head_inputs.hidden
        rows = rows_for(self.context.vocabulary_size, hidden.device)
        if len(x) <= rows or not torch.is_grad_enabled():
            of_masked = self.chunked_losses(head_inputs, x, losses, *others)
            total = normalised(weight * dense(where, of_masked.pop("loss"), shape), batch)
            return total, {name: dense(where, values.detach(), shape) for name, values in of_masked.items()}
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        given = move_to(weight[where], hidden.device)
        inputs = move_to((head_inputs.neighbours, x, *others), hidden.device)
        losses = self.compile_losses(self.of_head_inputs(losses))
        total, of_masked = weighted_sum(losses, rows, given, learned, hidden, *inputs)
        del of_masked["loss"]
        found = {name: dense(where, move_to(values, x.device), shape) for name, values in of_masked.items()}
        return move_to(total, x.device) / len(noised.x) / batch.mean_maskable, found

    @override
    def cross_entropy(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        where = pairs(masked)
        return self.cross_entropy_at(self.head_inputs_of(z, t, masked, x).at(where), x[where])

    def cross_entropy_at(self, head_inputs: HeadInputs, x: Tensor) -> Tensor:
        """Return −log p_θ(x_i | z) at N positions from their head inputs, in nats, float32 or wider [N]."""
        return self.chunked_losses(head_inputs, x, cross_entropy)["cross_entropy"]

    def dense_cross_entropy(self, noised: NoisedBatch) -> Tensor:
        """Return the cross-entropy of a batch with its gradient, float32 [B, L], zero where nothing is masked.

        Use it when the weights depend on the cross-entropy; otherwise `weighted_loss` is faster.
        """
        ce = self.cross_entropy_at(self.masked_hidden_states(noised), noised.x[noised.where])
        return dense(noised.where, ce, noised.x.shape)

    # The statistics of a step, for components whose state follows the training

    def follow(self, **parts: Any) -> None:
        """Register the components with a state, which `end_step` updates from the statistics of the step."""
        self.stateful = {name: part for name, part in parts.items() if isinstance(part, StatefulComponent)}
        self.totals: dict[str, Tensor] = {}

    def observe(self, noised: NoisedBatch, ce: Tensor) -> None:
        """Add the statistics of a micro-batch, given its cross-entropy [B, L]; does nothing in evaluation mode."""
        for name, part in self.stateful.items() if self.training else ():
            statistics = part.statistics(noised, ce.detach())
            self.totals[name] = self.totals[name] + statistics if name in self.totals else statistics

    @override
    def begin_step(self) -> None:
        self.totals.clear()

    @override
    def end_step(self, reduce: Callable[[Tensor], None], progress: float) -> None:
        for name, part in self.stateful.items():
            if (total := self.totals.pop(name, None)) is not None:
                reduce(total)
                part.update(total, progress)

    @override
    def stage(self, progress: float) -> str:
        return super().stage(progress) if self.curriculum is None else self.curriculum.stage(progress)

    @override
    def curriculum_strength(self, progress: float) -> float | None:
        return self.curriculum.strength(progress) if isinstance(self.curriculum, ExponentialWeighting) else None

    # The denoiser and its bound

    @override
    def denoiser(self) -> Denoiser:
        return Predictor(self)

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> Iterable[WeightedMask]:
        return method.masks(maskable, keys, draws, self.noise)

    @override
    def bound(
        self,
        tokens: Tensor,
        maskable: Tensor,
        keys: Tensor,
        draws: int,
        method: Bound,
        observe: Observer | None = None,
        documents: Tensor | None = None,
        difficulty: bool = False,
    ) -> dict[str, Estimate]:
        masks = list(self.masks(maskable, keys, draws, method))
        each = iter(masks)

        def at_masked(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
            mask, where = next(each), pairs(masked)
            shown = () if observe is None else (mask.by_token[where] / len(masks), *where)
            read = self.head_inputs_of(z, t, masked, x, documents)
            found = self.chunked_losses(read.at(where), x[where], of_logits, *shown)
            if difficulty and self.estimator.reads_hidden:
                found["importance"] = self.importance_of(read, z, maskable, t)[where]
            return found

        def of_logits(logits: Tensor, true: Tensor, _: Tensor, *shown: Tensor) -> dict[str, Tensor]:
            if observe is not None:
                weight, row, position = move_to(shown, tokens.device)
                log_probs, of_text = move_to((logits.log_softmax(-1), true), tokens.device)
                of_masked = {"weight": weight.double(), "row": row, "position": position}
                observe(log_probs=log_probs, tokens=of_text, **of_masked)
            found = self.token_bounds(logits, true, method.quantity)
            return found | ({"entropy": entropy(logits)} if difficulty else {})

        averages = average(at_masked, tokens, masks, self.context.mask_id, keep=difficulty)
        return averages | self.own_bounds(tokens, maskable, keys, draws, documents)

    def token_bounds(self, logits: Tensor, x: Tensor, quantity: str) -> dict[str, Tensor]:
        """Return a dict from the bound's name to the losses of the masked tokens x, in nats [N]; logits are [N, V]."""
        return {quantity: F.cross_entropy(logits, x, reduction="none")}

    def own_bounds(
        self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int, documents: Tensor | None = None
    ) -> dict[str, Estimate]:
        """Return a dict of bounds under the objective's own forward process; by default, it is empty."""
        return {}


class MDLMModule(DenoisingModule):
    """The module of `mdlm`: the backbone, the estimator and the components that choose masks and loss weights."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        weight: Literal["nelbo", "simple"],
        correction: Literal["none", "horvitz_thompson"],
        floor: float,
        importance_loss_weight: float,
        visible_loss_weight: float,
    ) -> None:
        super().__init__(context, parts, batch_size)
        self.weight, self.correction, self.floor = weight, correction, floor
        self.importance_loss_weight, self.visible_loss_weight = importance_loss_weight, visible_loss_weight
        # Those that are modules are registered with their weights and state.
        self.estimator, self.masking, self.mask_drawing = parts["estimator"], parts["masking"], parts["mask_drawing"]
        self.curriculum, self.target = parts["curriculum"], parts["target"]
        self.stepwise = isinstance(self.masking, StepwiseMaskingModule)
        if self.stepwise:
            self.repetition = self.masking.repetition
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self.follow(rates=self.rates, masking=self.masking, curriculum=self.curriculum, target=self.target)

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        # 1. A time for each row, which determines how much of the row is masked.
        levels = self.levels(self.times(batch.index), batch)
        # 2. The tokens to mask, which depend on their importance.
        noised, importance = self.mask_batch(batch, levels)
        # 3. The network reads the masked text; only the hidden states of the masked tokens are used below.
        read = self.hidden_states(noised)
        if importance is None:
            importance = self.importance_of(read, noised.z, batch.maskable, levels.t)
        head_inputs = read.at(noised.where)
        # 4. The weight of each masked token.
        weight = self.weights(noised, levels, importance.detach(), batch.progress)
        # 5. Logits, cross-entropy and their weighted sum, a bounded number of positions at a time.
        diffusion, found = self.weighted_loss(head_inputs, noised, weight, batch)
        ce, loss = found["cross_entropy"], diffusion
        if self.visible_loss_weight:
            visible = noised.maskable & ~noised.masked
            kept = dense(where := pairs(visible), self.cross_entropy_at(read.at(where), noised.x[where]), visible.shape)
            loss = loss + self.visible_loss_weight * normalised(kept, batch)
        # 6. The statistics of the step, for components with a state.
        if self.stepwise:
            difficulty = importance.detach() if self.masking.reads_importance else found.get("difficulty")
            noised = attrs.evolve(noised, index=batch.index, difficulty=difficulty)
        self.observe(noised, ce)
        # 7. The estimator's own loss, and the metrics.
        if not self.learns_importance:
            return {**metrics(noised, ce, diffusion, loss), "importance": importance.detach()}
        distance = importance_loss(importance, *self.target(noised, ce))
        loss = loss + self.importance_loss_weight * distance
        learned = {"importance_loss": distance.detach(), "importance": importance.detach()}
        return metrics(noised, ce, diffusion, loss) | learned

    def mask_batch(self, batch: Batch, levels: NoiseLevels) -> tuple[NoisedBatch, Tensor | None]:
        """Return the noisy batch and the importance [B, L] of x or z, with its gradient.

        Instead of the importance, return None if the estimator reads hidden states, which are not computed yet.
        """
        importance = None
        if self.estimator.reads == "x":
            importance = self.importance(batch.tokens, batch.maskable, levels.t)
        if self.stepwise:
            masked = self.masking.draw_mask(levels.rate, batch.maskable, batch.index)
            noised = self.noised(batch, masked, levels.t, levels.rate[:, None] * batch.maskable, levels.rate)
        elif importance is not None:
            return self.mask(batch, importance.detach(), levels), importance
        elif isinstance(self.masking, VisibleTextMasking):
            noised = self.mask_by_visible_text(batch, levels)
        else:  # before a mask is drawn, all tokens are alike
            noised = self.mask(batch, torch.full(batch.tokens.shape, 0.5, device=batch.tokens.device), levels)
        if importance is None and not self.estimator.reads_hidden:
            importance = self.importance(noised.z, batch.maskable, levels.t)
        return noised, importance

    def mask(self, batch: Batch, importance: Tensor, levels: NoiseLevels) -> NoisedBatch:
        """Return the noisy batch of a `Masking`, whose probabilities come from importance [B, L]; one key per row."""
        p, rate = self.masking.probabilities(importance, levels.rate, batch.maskable), levels.rate
        if self.correction == "horvitz_thompson":
            p = torch.where(batch.maskable, torch.lerp(p, rate[:, None], self.floor), p)
        masked = self.mask_drawing(p, sequence_keys(self.context.seed, "mask", batch.index)) & batch.maskable
        return self.noised(batch, masked, levels.t, p, rate)

    def mask_by_visible_text(self, batch: Batch, levels: NoiseLevels) -> NoisedBatch:
        """Return the noisy batch of a `VisibleTextMasking`, with one key per row."""

        def scores(masked: Tensor) -> Tensor:
            # Not under no_grad: autocast caches the weights that it has cast, and these would have no gradient in the
            # second pass either.
            z = torch.where(masked, self.context.mask_id, batch.tokens)
            return self.importance(z, batch.maskable, levels.t).detach()

        keys = sequence_keys(self.context.seed, "mask", batch.index)
        masked = self.masking.draw_mask(scores, levels.rate, batch.maskable, keys) & batch.maskable
        return self.noised(batch, masked, levels.t, levels.rate[:, None] * batch.maskable, levels.rate)

    @override
    def of_head_inputs(self, losses: Losses) -> Losses:
        if not (self.stepwise and self.training):
            return super().of_head_inputs(losses)

        def losses_of(hidden: Tensor, neighbours: Tensor | None, x: Tensor, *others: Tensor) -> dict[str, Tensor]:
            # The policy must not read the token that is masked, not even by leaving it out of the counts.
            logits = self.logits(HeadInputs(hidden, neighbours))
            difficulty = self.masking.difficulty(logits.detach())
            if neighbours is not None:
                logits = self.backbone.prior.without(x, logits, move_to(neighbours, logits.device))
            found = losses(logits, x, hidden, *others)
            return found if difficulty is None else {**found, "difficulty": difficulty}

        return losses_of

    def weights(self, noised: NoisedBatch, levels: NoiseLevels, importance: Tensor, progress: float) -> Tensor:
        """Return c·ω·h, the weight of each token's loss, [B, L] (see `MDLMObjective`)."""
        weight: Tensor = self.curriculum.weights(noised, importance, progress)
        if self.weight == "nelbo":
            weight = weight * levels.weight[:, None]
        if self.correction == "horvitz_thompson":
            weight = weight * torch.where(noised.masked, noised.rate[:, None] / noised.p, 1.0)
        return weight


def cross_entropy(logits: Tensor, x: Tensor, _: Tensor) -> dict[str, Tensor]:
    """Return a dict with −log p(x) at N positions, nats [N], from logits [N, V], as `"loss"` and `"cross_entropy"`."""
    ce = F.cross_entropy(logits, x, reduction="none")
    return {"loss": ce, "cross_entropy": ce}


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of softmax(logits) in nats, [N]; the logits are [N, V]."""
    log_p = logits.log_softmax(-1)
    return -torch.where(log_p > -torch.inf, log_p.exp() * log_p, 0.0).sum(-1)


def dense(where: tuple[Tensor, Tensor], values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor [B, L] with N values at the given rows and positions, int64 [N] each, and zero elsewhere."""
    # For its gradient, `masked_scatter` would count the positions again, which makes the host wait.
    return torch.zeros(shape, dtype=values.dtype, device=values.device).index_put(where, values)


def normalised(losses: Tensor, batch: Batch) -> Tensor:
    """Return this micro-batch's contribution to Σ losses / Σ maskable of the global batch, from losses [B, L]."""
    return losses.sum(1).mean() / batch.mean_maskable


def importance_loss(importance: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """Return the mean squared error of the importance over the tokens in `counted`; all arguments are [B, L].

    The result is a mean over rows of means within rows, so it does not depend on the micro-batch size.
    """
    squared = torch.where(counted, importance - target, 0.0).square().sum(1)
    return (squared / counted.sum(1).clamp(min=1)).mean()


def metrics(noised: NoisedBatch, ce: Tensor, diffusion_loss: Tensor, loss: Tensor | None = None) -> dict[str, Tensor]:
    """Return the metrics of a step from the cross-entropy [B, L], the diffusion loss and the total loss."""
    ce = ce.detach()
    masked, maskable = noised.masked.sum(), noised.maskable.sum().clamp(min=1)
    return {
        "loss": diffusion_loss if loss is None else loss,
        "diffusion_loss": diffusion_loss.detach(),
        "cross_entropy": ce.sum() / masked.clamp(min=1),
        "mask_rate": masked / maskable,
        "mask_rate_target": (noised.rate * noised.maskable.sum(1)).sum() / maskable,
        "rates": noised.rate,
        "token_loss": ce,
        "masked": noised.masked,
        "maskable": noised.maskable,
    }


class Predictor(Denoiser):
    """The denoiser p_θ(x_i | z) of a module; it scores visible tokens and, with an estimator, gives importance."""

    scores_visible_tokens = True

    def __init__(self, module: DenoisingModule) -> None:
        self.module = module
        self.mask_id, self.window = module.context.mask_id, module.context.length
        self.reads_time, self.loss_by_mask_rate = module.backbone.reads_time, module.loss_by_mask_rate
        self.estimates_importance = module.estimator is not None
        self.padded = False
        # The text that `importance` read last, and its head inputs: `__call__` needs no second forward pass for it.
        self.known: tuple[Tensor, int, HeadInputs] | None = None
        if module.estimator is not None:
            self.importance_reads = module.estimator.reads

    @override
    def time_at(self, rate: Tensor) -> Tensor:
        return self.module.noise.time_at(rate)

    @override
    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        if not self.estimates_importance:
            return None
        t = self.time_at(masked.float().mean(1)) if self.module.estimator.reads_time else None
        everywhere = torch.ones_like(masked)  # all tokens are treated as maskable
        if not self.module.estimator.reads_hidden:
            return self.module.importance(tokens, everywhere, t)
        read = self.head_inputs(tokens, None)
        if not self.reads_time:  # the predictions could be those of a different time
            self.known = tokens, tokens._version, read
        return self.module.importance_of(read, tokens, everywhere, t)

    def known_head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        """Return the head inputs [B, L] at every position, those of `importance` if it has just read the same text."""
        known, self.known = self.known, None
        if known is not None and known[0] is tokens and known[1] == tokens._version:
            return known[2]
        return self.head_inputs(tokens, t)

    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        """Return the head inputs [B, L] at every position, by a forward pass."""
        padding = (tokens > self.mask_id).long() if self.padded else None
        return self.module.head_inputs(tokens.clamp(max=self.mask_id) if self.padded else tokens, t, padding)

    @override
    def with_padding(self) -> Denoiser:
        padded = copy.copy(self)
        padded.padded = True
        return padded

    def log_probs(self, head_inputs: HeadInputs, device: torch.device) -> Tensor:
        """Return log-probabilities [N, V] on the device of the tokens; on a CPU, raise a `UserError` if any is NaN."""
        log_probs = move_to(self.module.logits(head_inputs).log_softmax(-1), device)
        # One such logit makes its whole row NaN. On an accelerator, the check would have to wait.
        if log_probs.device.type == "cpu" and bool(log_probs[..., :1].isnan().any()):
            raise UserError(
                "the network's logits are not finite: its weights are damaged, or too large for its "
                "precision; pass --precision fp32, or use a different model"
            )
        return log_probs

    @override
    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        return self.log_probs(self.known_head_inputs(tokens, t).at(where), tokens.device)

    @override
    def score_visible(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        head_inputs = self.known_head_inputs(tokens, t)
        logits = self.module.logits(head_inputs.at(visible))
        loss = F.cross_entropy(logits, move_to(tokens[visible], logits.device), reduction="none")
        return self.log_probs(head_inputs.at(where), tokens.device), -move_to(loss, tokens.device)
