"""The module of `adaptive`. Shapes: B rows of a micro-batch, K masks per row, L tokens, N masked tokens, width D.

Repeated rows are ordered by draw: row b of draw j is row j·B + b of K·B.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.adaptive_bound import FORMS, DrawnMask, estimate, forward_surrogate
from atat_zoo.diffusion.chunks import wide
from atat_zoo.diffusion.contracts import Denoiser, NoisedBatch
from atat_zoo.diffusion.dropout import set_keys
from atat_zoo.diffusion.likelihood_bounds import Estimate
from atat_zoo.diffusion.positions import Where, pairs
from atat_zoo.diffusion.randomness import fold, sequence_keys
from atat_zoo.modeling.objectives import Batch
from atat_zoo.modeling.objectives.denoising import (
    DenoisingModule,
    Predictor,
    dense,
    importance_loss,
    metrics,
    normalised,
)
from atat_zoo.registry import Context
from atat_zoo.system.devices import move_to


class AdaptiveModule(DenoisingModule):
    """The module of `adaptive`: a backbone with a head for ŵ, and the estimator, the bias and φ, which define w."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        form: Literal["order", "timed"],
        temperature: float,
        bias: nn.Module,
        strength: float,
        learn_importance: bool,
        learn_position: bool,
        mask_samples: int | None,
        weight: Literal["bound", "nelbo", "simple"],
        reverse_loss_weight: float,
        importance_loss_weight: float,
    ) -> None:
        super().__init__(context, parts, batch_size)
        self.form, self.temperature, self.strength, self.weight = FORMS[form], temperature, strength, weight
        self.learn_importance, self.learns = learn_importance, learn_importance or learn_position
        self.repeats = mask_samples or (2 if self.learns else 1)
        self.reverse_loss_weight, self.importance_loss_weight = reverse_loss_weight, importance_loss_weight
        self.estimator, self.target = parts["estimator"], parts["target"]
        self.bias: Any = bias
        # In the order form, a common factor of ŵ cancels; in the timed form, it is the speed.
        self.order_head = nn.Linear(self.backbone.embedding.embedding_dim, 1, bias=form == "timed")
        for parameter in self.order_head.parameters():
            nn.init.zeros_(parameter)
        self.position = nn.Parameter(torch.zeros(context.length)) if learn_position else None
        self.trains_estimator = any(p.requires_grad for p in self.estimator.parameters())
        self.follow(bias=self.bias, target=self.target)

    def log_weights(self, importance: Tensor) -> Tensor:
        """Return log w, float64 [B, L], differentiable with respect to whatever the bound trains."""
        if not self.learn_importance:
            importance = importance.detach()
        return (0.5 - importance.double()) / self.temperature + self.by_position(importance.shape[1])

    def by_position(self, length: int) -> Tensor:
        """Return the terms of log w that depend only on the position, float64 [L]."""
        bias = self.bias.values(length).double()
        log_w = -self.strength * (bias - bias.mean())
        return log_w if self.position is None else log_w + move_to(self.position[:length], log_w.device)

    def reverse(self, hidden: Tensor, where: Where, length: int) -> Tensor:
        """Return log ŵ [N] from the hidden states [N, D] of the masked positions of z, of length L = `length`.

        The position-dependent terms of w are added, so the head learns only the rest: if w does not depend on x, ŵ is
        exact from the first step. The result is computed in float32, because small differences decide the order.
        """
        by_position = self.by_position(length).detach().float()[pairs(where)[1]]
        with torch.autocast(hidden.device.type, enabled=False):
            log_reverse: Tensor = self.order_head(wide(hidden)).squeeze(-1)
        return move_to(log_reverse, by_position.device) + by_position

    def look(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return −log p_θ(x_i | z) and log ŵ_i at the masked positions, each [N], from one forward pass."""
        where = pairs(masked)
        head_inputs = self.head_inputs(z, t).at(where)
        ce = self.cross_entropy_at(head_inputs, x[where])
        return ce, self.reverse(head_inputs.hidden, where, z.shape[1])

    def draw(self, batch: Batch, log_w: Tensor) -> tuple[NoisedBatch, DrawnMask]:
        """Return a noisy batch of K·B rows and its masks, drawn from log w [K·B, L]; a row's K share a size or time."""
        K = self.repeats
        row = sequence_keys(self.context.seed, "mask", batch.index)
        keys = torch.cat([fold(row, j) for j in range(K)])
        repeated = attrs.evolve(batch, tokens=batch.tokens.repeat(K, 1), maskable=batch.maskable.repeat(K, 1))
        drawn = self.form.draw(log_w, repeated.maskable, (1 - self.times(batch.index).double()).repeat(K), keys)
        rate, t = drawn.rate.float(), self.noise.time_at(drawn.level.float())
        # The row's mask rate: the probability of a single token under an order has no closed form.
        p = rate[:, None] * repeated.maskable
        noised = self.noised(repeated, drawn.masked, t, p, rate)
        if self.training:
            dropout = sequence_keys(self.context.seed, "dropout", batch.index)
            set_keys(self.backbone, move_to(torch.cat([fold(dropout, j) for j in range(K)]), self.device))
        return noised, drawn

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        K = self.repeats
        importance = self.importance(batch.tokens, batch.maskable, None)
        log_w = self.log_weights(importance).repeat(K, 1)
        noised, drawn = self.draw(batch, log_w)
        where, shape = noised.where, noised.x.shape
        head_inputs = self.head_inputs(noised.z, noised.t).at(where)
        log_reverse = dense(where, self.reverse(head_inputs.hidden, where, shape[1]), shape)

        weight, bracket = self.form.terms(drawn, log_w.detach(), log_reverse)
        if self.weight == "nelbo":
            weight = torch.where(noised.masked, 1 / drawn.rate[:, None], 0.0)
        elif self.weight == "simple":
            weight = noised.masked.double()
        loss, found = self.weighted_loss(head_inputs, noised, weight, batch)
        ce = found["cross_entropy"]
        diffusion = loss.float()
        reverse = normalised(bracket, batch).float()
        loss = diffusion + self.reverse_loss_weight * reverse
        # The loss of the forward weights: their bound per token, the distance to the target, or both.
        losses = [self._bound_loss(drawn, batch, log_w, ce, log_reverse.detach())] if self.learns else []
        if self.trains_estimator and not self.learn_importance:
            losses.append(importance_loss(importance.repeat(K, 1), *self.target(noised, ce)))
        forward = sum(losses[1:], losses[0]) if losses else None
        if forward is not None:
            loss = loss + self.importance_loss_weight * forward
        self.observe(noised, ce)
        return {
            **metrics(noised, ce, diffusion, loss),
            **({} if forward is None else {"importance_loss": forward.detach()}),
            "reverse_loss": reverse.detach(),
            "importance": importance.detach().repeat(K, 1),
        }

    def _bound_loss(self, drawn: DrawnMask, batch: Batch, log_w: Tensor, ce: Tensor, log_reverse: Tensor) -> Tensor:
        """Return the bound per token, whose gradient reaches the forward weights but not the backbone."""
        # φ is part of both w and ŵ: the gradient of the bound goes through both.
        by_position = self.by_position(batch.tokens.shape[1])
        log_reverse = log_reverse + (by_position - by_position.detach())
        weight, bracket = self.form.terms(drawn, log_w, log_reverse)
        bound = (weight * ce + bracket).sum(1).view(self.repeats, -1)
        log_q = self.form.log_probability(drawn, log_w).view(self.repeats, -1)
        return normalised(forward_surrogate(bound, log_q)[:, None], batch).float()

    @override
    def own_bounds(
        self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int, documents: Tensor | None = None
    ) -> dict[str, Estimate]:
        # `adaptive`, the bound of the full process in the chosen form.
        log_w = self.log_weights(self.importance(tokens, maskable, None))
        m, time_at = self.context.mask_id, self.noise.time_at
        found = estimate(self.form, self.look, tokens, maskable, log_w, keys, draws, mask_id=m, time_at=time_at)
        return {"adaptive": found}

    @override
    def denoiser(self) -> Denoiser:
        return _Denoiser(self)


class _Denoiser(Predictor):
    """The denoiser p_θ with the learned order weights."""

    module: AdaptiveModule
    gives_order_weights = True

    @override
    def predict_with_order(self, tokens: Tensor, t: Tensor | None, where: Where) -> tuple[Tensor, Tensor]:
        head_inputs = self.head_inputs(tokens, t).at(where)
        return self.log_probs(head_inputs, tokens.device), self.module.reverse(
            head_inputs.hidden, where, tokens.shape[1]
        )
