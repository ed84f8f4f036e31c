"""The training steps of mdlm and mlm; what they share with others stands in `denoising`.

B rows of a micro-batch, L tokens, D width, V predictable tokens, N masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.curricula import ExponentialWeighting
from atat_zoo.diffusion.bounds import uniform_order
from atat_zoo.diffusion.contracts import NoisedBatch, NoiseLevels
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.masking import VisibleTextMasking
from atat_zoo.noise import LinearNoise
from atat_zoo.objectives import Batch
from atat_zoo.objectives.denoising import DenoisingModule, StatefulParts, importance_loss, metrics
from atat_zoo.objectives.masked import MDLMObjective, MLMObjective
from atat_zoo.registry import Context


class MDLMModule(DenoisingModule):
    """Backbone, estimator and the parts that choose masks and loss weights."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, objective: MDLMObjective) -> None:
        super().__init__(context, parts, batch_size)
        self.weight, self.correction, self.floor = objective.weight, objective.correction, objective.floor
        self.importance_loss_weight = objective.importance_loss_weight
        # Those that are modules are registered with their weights and state.
        self.estimator, self.masking, self.mask_drawing = parts["estimator"], parts["masking"], parts["mask_drawing"]
        self.curriculum, self.target = parts["curriculum"], parts["target"]
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self.stateful = StatefulParts(
            rates=self.rates, masking=self.masking, curriculum=self.curriculum, target=self.target
        )

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        self.begin(batch)
        # 1. A time for each row, and by it how much of the row is masked.
        levels = self.levels(self.times(batch.index), batch)
        # 2. Which tokens are masked, by their importance.
        noised, importance = self.mask_batch(batch, levels)
        # 3. The network reads the text with masks; of its hidden states those of the masked tokens go on.
        head_inputs = self.masked_hidden_states(noised)
        # 4. The weight of each masked token.
        weight = self.weights(noised, levels, importance.detach(), batch.progress)
        # 5. Logits, cross-entropy and their weighted sum, a bounded number of positions at a time.
        diffusion, ce = self.weighted_loss(head_inputs, noised, weight, batch)
        # 6. What the parts with a state learn of the step.
        if self.training:
            self.stateful.observe(noised, ce)
        # 7. The estimator's own loss, and the figures.
        if not self.learns_importance:
            return {**metrics(noised, ce, diffusion), "importance": importance.detach()}
        distance = importance_loss(importance, *self.target(noised, ce))
        loss = diffusion + self.importance_loss_weight * distance
        learned = {"importance_loss": distance.detach(), "importance": importance.detach()}
        return metrics(noised, ce, diffusion, loss) | learned

    def mask_batch(self, batch: Batch, levels: NoiseLevels) -> tuple[NoisedBatch, Tensor]:
        """Draw z from x; return both, and the importance [B, L] of x or of z, with its gradient."""
        if self.estimator.reads == "x":
            importance = self.importance(batch.tokens, batch.maskable, levels.t)
            return self.mask(batch, importance.detach(), levels), importance
        if isinstance(self.masking, VisibleTextMasking):
            noised = self.mask_by_visible_text(batch, levels)
        else:  # before a mask is drawn, all tokens are alike
            noised = self.mask(batch, torch.full(batch.tokens.shape, 0.5, device=batch.tokens.device), levels)
        return noised, self.importance(noised.z, batch.maskable, levels.t)

    def mask(self, batch: Batch, importance: Tensor, levels: NoiseLevels) -> NoisedBatch:
        """Draw z from x by importance, with one key per row."""
        p, rate = self.masking.probabilities(importance, levels.rate, batch.maskable), levels.rate
        if self.correction == "horvitz_thompson":
            p = torch.where(batch.maskable, torch.lerp(p, rate[:, None], self.floor), p)
        masked = self.mask_drawing(p, row_keys(self.context.seed, "mask", batch.index)) & batch.maskable
        return self.noised(batch, masked, levels.t, p, rate)

    def mask_by_visible_text(self, batch: Batch, levels: NoiseLevels) -> NoisedBatch:
        """Draw z by what it shows of x, with one key per row."""

        def scores(masked: Tensor) -> Tensor:
            # Not under no_grad: autocast remembers the weights as it has cast them, and these would have no gradient
            # in the second pass either.
            z = torch.where(masked, self.context.mask_id, batch.tokens)
            return self.importance(z, batch.maskable, levels.t).detach()

        keys = row_keys(self.context.seed, "mask", batch.index)
        masked = self.masking.draw_mask(scores, levels.rate, batch.maskable, keys) & batch.maskable
        return self.noised(batch, masked, levels.t, levels.rate[:, None] * batch.maskable, levels.rate)

    def weights(self, noised: NoisedBatch, levels: NoiseLevels, importance: Tensor, progress: float) -> Tensor:
        """Return c·ω·h, the weight of each token's loss, [B, L]: see `MDLMObjective`."""
        weight: Tensor = self.curriculum.weights(noised, importance, progress)
        if self.weight == "nelbo":
            weight = weight * levels.weight[:, None]
        if self.correction == "horvitz_thompson":
            weight = weight * torch.where(noised.masked, noised.rate[:, None] / noised.p, 1.0)
        return weight

    @override
    def stage(self, progress: float) -> str:
        stage: str = self.curriculum.stage(progress)
        return stage

    @override
    def curriculum_strength(self, progress: float) -> float | None:
        return self.curriculum.strength(progress) if isinstance(self.curriculum, ExponentialWeighting) else None


class MLMModule(DenoisingModule):
    """A denoiser that is trained at one mask rate."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, objective: MLMObjective) -> None:
        # The training has no schedule; estimators of the bound that follow one get the linear schedule.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)
        self.rate = objective.rate

    def mask(self, batch: Batch) -> tuple[NoisedBatch, Tensor]:
        """Mask k tokens of every row; returns the noised batch and k, int64 [B], 0 where a row has nothing maskable."""
        n = batch.maskable.sum(1)
        k = (self.rate * n).round().long().clamp(min=1).minimum(n)
        order = uniform_order(batch.maskable, row_keys(self.context.seed, "mask", batch.index))
        share = k / n.clamp(min=1)
        masked = (order < k[:, None]) & batch.maskable
        return self.noised(batch, masked, share, share[:, None] * batch.maskable), k

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        self.begin(batch)
        noised, k = self.mask(batch)
        weight = (batch.maskable.sum(1) / k.clamp(min=1))[:, None].expand(noised.masked.shape)
        loss, ce = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch)
        return metrics(noised, ce, loss)
