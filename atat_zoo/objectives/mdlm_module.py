"""The training step of `mdlm`. B rows of a micro-batch, L tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atat_zoo.diffusion.contracts import Masked
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.objectives.denoising import DenoisingModule, StatefulParts, importance_loss, metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atat_zoo.diffusion.contracts import Masked
    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


class MDLMModule(DenoisingModule):
    """Backbone, estimator and the parts that decide what is masked and what counts."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        weight: str,
        correction: str,
        floor: float,
        importance_loss_weight: float,
    ) -> None:
        """Take the parts, and the parameters of `MDLMObjective`."""
        super().__init__(context, parts, batch_size)
        self.weight, self.correction, self.floor = weight, correction, floor
        self.importance_loss_weight = importance_loss_weight
        # Whichever of these is a module is registered as one, with its weights and its state.
        self.estimator = parts["estimator"]
        self.masking = parts["masking"]
        self.curriculum = parts["curriculum"]
        self.target = parts["target"]
        self.mask_drawing = parts["mask_drawing"]
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self.stateful = StatefulParts(masking=self.masking, curriculum=self.curriculum, target=self.target)

    def importance(self, tokens: Tensor, maskable: Tensor, t: Tensor | None) -> Tensor:
        """Return the importance of clean tokens, float32 [B, L], with its gradient."""
        embedded = self.backbone.embedding(tokens).detach()
        importance: Tensor = self.estimator(tokens, embedded, t, maskable)
        return importance

    def mask(self, batch: Batch, importance: Tensor, t: Tensor) -> Masked:
        """Draw z from x: MATH 3, with one key a row."""
        rate = 1 - self.noise.alpha(t)
        p = self.masking.probabilities(importance, rate, batch.maskable)
        if self.correction == "horvitz_thompson":
            p = torch.where(batch.maskable, torch.lerp(p, rate[:, None], self.floor), p)
        drawn = self.mask_drawing(p, row_keys(self.context.seed, "mask", batch.index)) & batch.maskable
        return self.masked(batch, drawn, t, p)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the metrics; see `ObjectiveModule`."""
        self.begin(batch)
        t = self.times(batch.index)
        importance = self.importance(batch.tokens, batch.maskable, t)
        detached = importance.detach()
        step = self.mask(batch, detached, t)
        ce = self.dense_cross_entropy(step)

        weight = self.curriculum.weights(step, detached, batch.progress)
        if self.weight == "nelbo":
            weight = weight * self.noise.weight(t)[:, None]
        if self.correction == "horvitz_thompson":
            weight = weight * torch.where(step.masked, step.rate[:, None] / step.p, 1.0)
        diffusion = normalised(weight * ce, batch)

        if self.training:
            self.stateful.observe(step, ce)
        if not self.learns_importance:
            return {**metrics(step, ce, diffusion), "importance": detached}
        distance = importance_loss(importance, *self.target(step, ce.detach()))
        loss = diffusion + self.importance_loss_weight * distance
        return {
            **metrics(step, ce, diffusion, loss),
            "importance_loss": distance.detach(),
            "importance": detached,
        }

    def stage(self, progress: float) -> str:
        """Return the curriculum's stage, for the metrics."""
        name: str = self.curriculum.stage(progress)
        return name
