"""The training step of `mdlm`. B rows of a micro-batch, N rows of the global batch, L tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.diffusion.bounds import Estimate, exact_k
from atat_zoo.diffusion.dropout import set_keys
from atat_zoo.diffusion.randomness import row_keys, stratified
from atat_zoo.diffusion.records import Adaptive, Masked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atat_zoo.diffusion.records import Denoiser
    from atat_zoo.objectives import Batch
    from atat_zoo.objectives.mdlm import MDLM
    from atat_zoo.registry import Context


class MDLMModule(nn.Module):
    """Backbone, estimator and the parts that decide what is masked and what counts."""

    def __init__(self, spec: MDLM, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        super().__init__()
        self.spec, self.context, self.batch_size = spec, context, batch_size
        # Whichever of these is a module is registered as one, with its weights and its memory.
        self.backbone = parts["backbone"]
        self.estimator = parts["estimator"]
        self.masking = parts["masking"]
        self.curriculum = parts["curriculum"]
        self.target = parts["target"]
        self.noise, self.drawing = parts["noise"], parts["drawing"]
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self._pending: dict[str, Tensor] = {}
        golden = round(batch_size * 0.618034)
        self.stride = next(s for s in range(max(1, golden), 2 * batch_size + 1) if math.gcd(s, batch_size) == 1)

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
        masked = self.drawing(p, row_keys(self.context.seed, "mask", batch.index)) & batch.maskable
        z = torch.where(masked, self.context.mask_id, batch.tokens)
        return Masked(x=batch.tokens, z=z, masked=masked, maskable=batch.maskable, t=t, rate=rate, p=p)

    def times(self, index: Tensor) -> Tensor:
        """Return t_j = 1 − ((u + j/N) mod 1), float32 [B] in (0, 1]; one u in [0, 1) for all rows of a step.

        Rows take the strata j in strides of about N/φ, so that every micro-batch has times from all over (0, 1]:
        the masked positions, and with them the memory for logits, are then about the same in each.
        """
        step, row = index // self.batch_size, index * self.stride % self.batch_size
        keys = row_keys(self.context.seed, "time", step)
        return (1 - stratified(keys, row, self.batch_size, torch.float64)).float()

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and what to report of it; see `ObjectiveModule`."""
        if self.training:
            set_keys(self, row_keys(self.context.seed, "dropout", batch.index))
        t = self.times(batch.index)
        importance = self.importance(batch.tokens, batch.maskable, t)
        detached = importance.detach()
        step = self.mask(batch, detached, t)
        ce = self.cross_entropy(step)
        detached_ce = ce.detach()

        weight = self.curriculum.weights(step, detached, batch.progress)
        if self.spec.weight == "nelbo":
            weight = weight * self.noise.weight(t)[:, None]
        if self.spec.correction == "horvitz_thompson":
            weight = weight * torch.where(step.masked, step.rate[:, None] / step.p, 1.0)
        diffusion = (weight * ce).sum(1).mean() / batch.mean_maskable

        loss = diffusion
        if self.learns_importance:
            target, counted = self.target(step, detached_ce)
            squared = torch.where(counted, importance - target, 0.0).square().sum(1)
            # A mean over rows of means within rows: the same whatever the micro-batch.
            importance_loss = (squared / counted.sum(1).clamp(min=1)).mean()
            loss = diffusion + self.spec.importance_loss_weight * importance_loss
        else:
            importance_loss = torch.zeros((), device=ce.device)
        if self.training:
            self._remember(step, detached_ce)
        masked = step.masked.sum()
        return {
            "loss": loss,
            "diffusion_loss": diffusion.detach(),
            "importance_loss": importance_loss.detach(),
            "cross_entropy": detached_ce.sum() / masked.clamp(min=1),
            "mask_rate": masked / step.maskable.sum().clamp(min=1),
            "mask_rate_target": (step.rate * step.maskable.sum(1)).sum() / step.maskable.sum().clamp(min=1),
            "importance": detached,
            "token_loss": detached_ce,
            "masked": step.masked,
            "maskable": step.maskable,
        }

    def cross_entropy(self, step: Masked) -> Tensor:
        """Return −log p_θ(x_i | z) in nats, float32 [B, L], zero where nothing is masked.

        SUBS: visible tokens cost nothing, so the head runs at masked positions only.
        """
        hidden = self.backbone(step.z, step.t if self.backbone.reads_time else None)
        logits = self.backbone.head(hidden[step.masked])
        ce = F.cross_entropy(logits.float(), step.x[step.masked], reduction="none")
        return torch.zeros(step.x.shape, device=ce.device).masked_scatter(step.masked, ce)

    def bound(self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int) -> dict[str, Estimate]:
        """Return the NELBO under uniform masking, by exact-k."""
        estimate = exact_k(
            self.denoiser(), tokens, maskable, keys, draws, mask_id=self.context.mask_id, time_at=self.noise.time_at
        )
        return {"nelbo": estimate}

    def denoiser(self) -> Denoiser:
        """Return p_θ(x_i | z): SUBS log-probabilities at the masked positions asked for."""

        def denoise(tokens: Tensor, t: Tensor | None, where: Tensor) -> Tensor:
            if self.backbone.reads_time and t is None:
                t = self.noise.time_at((tokens == self.context.mask_id).float().mean(1))
            hidden = self.backbone(tokens, t if self.backbone.reads_time else None)
            logits: Tensor = self.backbone.head(hidden[where])
            return logits.float().log_softmax(-1)

        return denoise

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

    def _adaptive(self) -> list[tuple[str, Adaptive]]:
        parts = {"masking": self.masking, "curriculum": self.curriculum, "target": self.target}
        return [(name, part) for name, part in parts.items() if isinstance(part, Adaptive)]

    def _remember(self, step: Masked, ce: Tensor) -> None:
        for name, part in self._adaptive():
            seen = part.statistics(step, ce)
            self._pending[name] = self._pending[name] + seen if name in self._pending else seen
