"""The training steps of mdlm, mlm, sedd and d3pm.

B rows of a micro-batch, L tokens, D width, V predictable tokens, N masked positions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atat_zoo.curricula import Tilting
from atat_zoo.diffusion.bounds import WeightedMask, average, counts, reveal, uniform_order
from atat_zoo.diffusion.randomness import fold, row_keys, uniform
from atat_zoo.masking import Revealing
from atat_zoo.noise import LinearNoise
from atat_zoo.objectives.chunks import wide
from atat_zoo.objectives.denoising import (
    DenoisingModule,
    StatefulParts,
    importance_loss,
    metrics,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atat_zoo.diffusion.bounds import Estimate
    from atat_zoo.diffusion.contracts import Levels, Masked
    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


class MDLMModule(DenoisingModule):
    """Backbone, estimator and the parts that choose masks and loss weights."""

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
        # Those that are modules are registered with their weights and state.
        self.estimator, self.masking, self.mask_drawing = parts["estimator"], parts["masking"], parts["mask_drawing"]
        self.curriculum, self.target = parts["curriculum"], parts["target"]
        self.learns_importance = any(p.requires_grad for p in self.estimator.parameters())
        self.stateful = StatefulParts(
            rates=self.rates, masking=self.masking, curriculum=self.curriculum, target=self.target
        )

    def noised(self, batch: Batch, levels: Levels) -> tuple[Masked, Tensor]:
        """Draw z from x; return the step, and the importance [B, L] of x or of z, with its gradient."""
        if self.estimator.reads == "x":
            importance = self.importance(batch.tokens, batch.maskable, levels.t)
            return self.mask(batch, importance.detach(), levels), importance
        if isinstance(self.masking, Revealing):
            step = self.reveal(batch, levels)
        else:  # before a mask is drawn, all tokens are alike
            step = self.mask(batch, torch.full(batch.tokens.shape, 0.5, device=batch.tokens.device), levels)
        return step, self.importance(step.z, batch.maskable, levels.t)

    def reveal(self, batch: Batch, levels: Levels) -> Masked:
        """Draw z by what it shows of x: MATH 7, with one key per row."""

        def scores(hidden: Tensor) -> Tensor:
            # Not under no_grad: autocast remembers the weights as it has cast them, and these would have no gradient
            # in the second pass either.
            z = torch.where(hidden, self.context.mask_id, batch.tokens)
            return self.importance(z, batch.maskable, levels.t).detach()

        keys = row_keys(self.context.seed, "mask", batch.index)
        drawn = self.masking.reveal(scores, levels.rate, batch.maskable, keys) & batch.maskable
        return self.masked(batch, drawn, levels.t, levels.rate[:, None] * batch.maskable, levels.rate)

    def mask(self, batch: Batch, importance: Tensor, levels: Levels) -> Masked:
        """Draw z from x: MATH 3, with one key per row."""
        p, rate = self.masking.probabilities(importance, levels.rate, batch.maskable), levels.rate
        if self.correction == "horvitz_thompson":
            p = torch.where(batch.maskable, torch.lerp(p, rate[:, None], self.floor), p)
        drawn = self.mask_drawing(p, row_keys(self.context.seed, "mask", batch.index)) & batch.maskable
        return self.masked(batch, drawn, levels.t, p, rate)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """See `ObjectiveModule`."""
        self.begin(batch)
        levels = self.levels(self.times(batch.index), batch)
        step, importance = self.noised(batch, levels)
        detached = importance.detach()

        weight = self.curriculum.weights(step, detached, batch.progress)
        if self.weight == "nelbo":
            weight = weight * levels.weight[:, None]
        if self.correction == "horvitz_thompson":
            weight = weight * torch.where(step.masked, step.rate[:, None] / step.p, 1.0)
        diffusion, ce = self.minimised(self.of_step(step), step, weight, batch)

        if self.training:
            self.stateful.observe(step, ce)
        if not self.learns_importance:
            return {**metrics(step, ce, diffusion), "importance": detached}
        distance = importance_loss(importance, *self.target(step, ce))
        loss = diffusion + self.importance_loss_weight * distance
        return {**metrics(step, ce, diffusion, loss), "importance_loss": distance.detach(), "importance": detached}

    def stage(self, progress: float) -> str:
        """See `ObjectiveModule`: the curriculum's stage."""
        name: str = self.curriculum.stage(progress)
        return name

    def curriculum_strength(self, progress: float) -> float | None:
        """See `ObjectiveModule`: the curriculum's strength, if it has one."""
        return self.curriculum.strength(progress) if isinstance(self.curriculum, Tilting) else None


class MLMModule(DenoisingModule):
    """A denoiser that is trained at one mask rate."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, rate: float) -> None:
        # The training has no schedule; estimators of the bound that follow one get the linear schedule.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)
        self.rate = rate

    def mask(self, batch: Batch) -> tuple[Masked, Tensor]:
        """Mask k tokens of every row; returns the step and k, int64 [B], 0 where a row has nothing maskable."""
        n = batch.maskable.sum(1)
        k = (self.rate * n).round().long().clamp(min=1).minimum(n)
        order = uniform_order(batch.maskable, row_keys(self.context.seed, "mask", batch.index))
        share = k / n.clamp(min=1)
        step = self.masked(batch, (order < k[:, None]) & batch.maskable, share, share[:, None] * batch.maskable)
        return step, k

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """See `ObjectiveModule`."""
        self.begin(batch)
        step, k = self.mask(batch)
        weight = (batch.maskable.sum(1) / k.clamp(min=1))[:, None].expand(step.masked.shape)
        loss, ce = self.minimised(self.of_step(step), step, weight, batch)
        return metrics(step, ce, loss)


def score_entropy(f: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of S − f_x − 1, in nats, from f [N, V] and the clean tokens x [N].

    Returns:
        The cross-entropy of softmax f, [N]; and S − 1 − log S ≥ 0 with S = Σ e^f, [N], which is 0 where S = 1.
    """
    log_s = f.logsumexp(-1)
    return log_s - f.gather(-1, x[:, None])[:, 0], log_s.expm1() - log_s


class SEDDModule(DenoisingModule):
    """A head that gives log-ratios; its softmax is the denoiser."""

    offset: Tensor

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, weight: str) -> None:
        super().__init__(context, parts, batch_size)
        self.weight = weight
        self.stateful = StatefulParts(rates=self.rates)
        with torch.no_grad():
            untrained = self.backbone.head(torch.zeros_like(self.backbone.embedding.weight[:1]))
        # The head's log Σ e^f before training: log V, or 0 with the unigram bias. A buffer, because
        # the token counts behind that bias are not available when a saved model is built again.
        self.register_buffer("offset", untrained.float().logsumexp(-1)[0])

    def terms(self, logits: Tensor, x: Tensor, _: Tensor) -> dict[str, Tensor]:
        """Return the score entropy and its first term, [N] each, with f = log(s_y/ρ) from the logits [N, V]."""
        ce, excess = score_entropy(logits - self.offset, x)
        return {"loss": ce + excess, "cross_entropy": ce}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """See `ObjectiveModule`."""
        self.begin(batch)
        levels = self.levels(self.times(batch.index), batch)
        step = self.masked_uniformly(batch, levels.t, levels.rate)
        weight = levels.weight if self.weight == "nelbo" else torch.ones_like(levels.rate)
        weight = weight[:, None].expand(step.masked.shape)
        loss, ce = self.minimised(self.of_step(step), step, weight, batch, self.terms)
        if self.training:
            self.stateful.observe(step, ce)
        return metrics(step, ce, loss)

    def token_bounds(self, logits: Tensor, x: Tensor, quantity: str) -> dict[str, Tensor]:
        """Return the cross-entropy of softmax f; and `sedd`, with the penalty, on the same masks.

        The score entropy is an integral over continuous time, so a bound of discrete steps does not include it.
        """
        ce, excess = score_entropy(logits - self.offset, x)
        return {quantity: ce} | ({"sedd": ce + excess} if quantity == "nelbo" else {})


def step_kl(log_p: Tensor, log_mu: Tensor, beta: Tensor) -> Tensor:
    """Return KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) at masked positions, nats, float64 [N].

    Computed as −β log p̃(x) − (1 − β) log1p(βμ/(1 − β)), which is accurate for small β or small μ; at β = 1 the
    second term is 0.

    Args:
        log_p: log p̃_θ(x), of the clean token among V + 1 outcomes, [N].
        log_mu: log μ, of the mask, [N].
        beta: float64 [N], in [0, 1].
    """
    stay = 1 - beta
    odds = beta * log_mu.double().exp() / stay.clamp(min=torch.finfo(stay.dtype).tiny)
    return -beta * log_p - stay * odds.log1p()


class D3PMModule(DenoisingModule):
    """A denoiser with the mask as an additional outcome, by a linear layer of its own."""

    def __init__(
        self, context: Context, parts: Mapping[str, Any], batch_size: int, *, steps: int, weight: str, auxiliary: float
    ) -> None:
        super().__init__(context, parts, batch_size)
        self.steps, self.weight, self.auxiliary = steps, weight, auxiliary
        self.mask_head = nn.Linear(self.backbone.embedding.embedding_dim, 1)
        with torch.no_grad():
            untrained = self.backbone.head(torch.zeros_like(self.backbone.embedding.weight[:1])).float()
            nn.init.zeros_(self.mask_head.weight)
            # The mean probability of a token before training, whatever the bias of the head.
            self.mask_head.bias.copy_(untrained.logsumexp(-1) - math.log(context.vocabulary_size))

    def outcomes(self, logits: Tensor, x: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        """Return log p̃_θ of the true token and of the mask, among V + 1 outcomes, at N masked positions, [N] each."""
        log_p = torch.cat([logits, wide(self.mask_head(hidden))], dim=-1).log_softmax(-1)
        return {"token": log_p.gather(-1, x[:, None])[:, 0], "mask": log_p[:, -1]}

    def terms(self, logits: Tensor, x: Tensor, hidden: Tensor, beta: Tensor) -> dict[str, Tensor]:
        """Return the loss, and the cross-entropy of the prediction renormalised over V tokens, of N places [N]."""
        of_x, of_mask = self.outcomes(logits, x, hidden).values()
        kl = step_kl(of_x, of_mask, beta)
        if self.weight == "nelbo":
            losses = self.steps * (kl - self.auxiliary * of_x)
        else:  # where nothing is ever revealed, β = 0, there is no KL
            losses = kl / beta.clamp(min=torch.finfo(beta.dtype).tiny) - self.auxiliary * of_x
        ce = torch.log(-torch.expm1(of_mask)) - of_x
        return {"loss": losses.to(ce.dtype), "cross_entropy": ce}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """See `ObjectiveModule`."""
        self.begin(batch)
        T = self.steps
        i = (self.times(batch.index).double() * T).ceil().long().clamp(1, T)
        step = self.masked_uniformly(batch, (i / T).float())
        beta = reveal(i, T, self.noise.alpha)[:, None].expand(step.masked.shape)[step.masked]
        loss, ce = self.minimised(self.of_step(step), step, torch.ones_like(step.p), batch, self.terms, beta)
        return metrics(step, ce, loss)

    def own_bounds(self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int) -> dict[str, Estimate]:
        """Return `d3pm`, an estimate of Σ_{i=1..T} E ΣKL_i with i stratified over the draws; see `discrete_t`.

        The process knows the time, so a time-conditioned network gets t = i/T. A schedule that does not go from α = 1
        to α = 0 has no such bound.
        """
        if not self.noise.complete:
            return {}
        T = self.steps

        def masks() -> Iterator[WeightedMask]:
            for j, i in enumerate(counts(torch.full_like(keys, T), keys, draws)):
                t = i.double() / T
                rate = 1 - self.noise.alpha(t)
                masked = (uniform(fold(keys, j), tokens.shape[1], torch.float64) < rate[:, None]) & maskable
                yield WeightedMask(masked=masked, weight=torch.full_like(t, T), t=t)

        def losses(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
            assert t is not None
            of_x, of_mask = self.each(self.places(z, t, masked, x), x[masked], self.outcomes).values()
            beta = reveal((t * T).round().long(), T, self.noise.alpha)[:, None].expand(masked.shape)[masked]
            return {"d3pm": step_kl(of_x, of_mask, beta)}

        return average(losses, tokens, masks(), self.context.mask_id)
