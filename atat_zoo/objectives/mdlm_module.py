"""The training step of `mdlm`. B rows of a micro-batch, L tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atat_zoo.diffusion.contracts import Masked, StatefulPart
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.objectives.denoising import DenoisingModule, figures, normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atat_zoo.objectives import Batch
    from atat_zoo.objectives.mdlm import MDLMObjective
    from atat_zoo.registry import Context


class MDLMModule(DenoisingModule):
    """Backbone, estimator and the parts that decide what is masked and what counts."""

    def __init__(self, spec: MDLMObjective, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        super().__init__(context, parts, batch_size)
        self.spec = spec
        # Whichever of these is a module is registered as one, with its weights and its memory.
        self.estimator = parts["estimator"]
        self.masking = parts["masking"]
        self.curriculum = parts["curriculum"]
        self.target = parts["target"]
        self.mask_drawing = parts["mask_drawing"]
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self._pending: dict[str, Tensor] = {}

    def importance(self, tokens: Tensor, maskable: Tensor, t: Tensor | None) -> Tensor:
        """Return the importance of clean tokens, float32 [B, L], with its gradient."""
        embedded = self.backbone.embedding(tokens).detach()
        importance: Tensor = self.estimator(tokens, embedded, t, maskable)
        return importance

    def mask(self, batch: Batch, importance: Tensor, t: Tensor) -> Masked:
        """Draw z from x: MATH 3, with one key a row."""
        rate = 1 - self.noise.alpha(t)
        p = self.masking.probabilities(importance, rate, batch.maskable)
        if self.spec.correction == "horvitz_thompson":
            p = torch.where(batch.maskable, torch.lerp(p, rate[:, None], self.spec.floor), p)
        drawn = self.mask_drawing(p, row_keys(self.context.seed, "mask", batch.index)) & batch.maskable
        return self.masked(batch, drawn, t, p)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and what to report of it; see `ObjectiveModule`."""
        self.begin(batch)
        t = self.times(batch.index)
        importance = self.importance(batch.tokens, batch.maskable, t)
        detached = importance.detach()
        step = self.mask(batch, detached, t)
        ce = self.dense_cross_entropy(step)

        weight = self.curriculum.weights(step, detached, batch.progress)
        if self.spec.weight == "nelbo":
            weight = weight * self.noise.weight(t)[:, None]
        if self.spec.correction == "horvitz_thompson":
            weight = weight * torch.where(step.masked, step.rate[:, None] / step.p, 1.0)
        diffusion = normalised(weight * ce, batch)

        if self.training:
            self._remember(step, ce.detach())
        if not self.learns_importance:
            return {**figures(step, ce, diffusion), "importance": detached}
        target, counted = self.target(step, ce.detach())
        squared = torch.where(counted, importance - target, 0.0).square().sum(1)
        # A mean over rows of means within rows: the same whatever the micro-batch.
        importance_loss = (squared / counted.sum(1).clamp(min=1)).mean()
        loss = diffusion + self.spec.importance_loss_weight * importance_loss
        return {
            **figures(step, ce, diffusion, loss),
            "importance_loss": importance_loss.detach(),
            "importance": detached,
        }

    def stage(self, progress: float) -> str:
        """Return the curriculum's stage, for the records."""
        name: str = self.curriculum.stage(progress)
        return name

    def end_step(self, reduce: Callable[[Tensor], None], progress: float) -> None:
        """Let the parts with a memory take in the step; see `ObjectiveModule`."""
        for name, part in self._adaptive():
            total = self._pending.pop(name, None)
            if total is not None:
                reduce(total)
                part.update(total, progress)

    def _adaptive(self) -> list[tuple[str, StatefulPart]]:
        parts = {"masking": self.masking, "curriculum": self.curriculum, "target": self.target}
        return [(name, part) for name, part in parts.items() if isinstance(part, StatefulPart)]

    def _remember(self, step: Masked, ce: Tensor) -> None:
        for name, part in self._adaptive():
            seen = part.statistics(step, ce)
            self._pending[name] = self._pending[name] + seen if name in self._pending else seen
