"""The training step of d3pm. B rows of a micro-batch, L tokens, V predictable tokens, N masked positions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.bounds import Estimate, WeightedMask, average, counts, unmask_probability
from atat_zoo.diffusion.randomness import fold, uniform
from atat_zoo.objectives import Batch
from atat_zoo.objectives.chunks import wide
from atat_zoo.objectives.denoising import DenoisingModule, metrics
from atat_zoo.objectives.masked import D3PMObjective
from atat_zoo.registry import Context


def step_kl(log_p: Tensor, log_mu: Tensor, beta: Tensor) -> Tensor:
    """Return KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) at masked positions, nats, float64 [N].

    Computed as −β log p̃(x) − (1 − β) log1p(βμ/(1 − β)), which is accurate for small β or small μ; at β = 1 the
    second term is 0. All are [N]: log p̃_θ(x) of the clean token among V + 1 outcomes, log μ of the mask, and β in
    [0, 1], float64.
    """
    stay = 1 - beta
    odds = beta * log_mu.double().exp() / stay.clamp(min=torch.finfo(stay.dtype).tiny)
    return -beta * log_p - stay * odds.log1p()


class D3PMModule(DenoisingModule):
    """A denoiser with the mask as an additional outcome, by a linear layer of its own."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, objective: D3PMObjective) -> None:
        super().__init__(context, parts, batch_size)
        self.steps, self.weight, self.auxiliary = objective.steps, objective.weight, objective.auxiliary
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
        """Return the loss, and the cross-entropy of the prediction renormalised over V tokens, of N positions [N]."""
        of_x, of_mask = self.outcomes(logits, x, hidden).values()
        kl = step_kl(of_x, of_mask, beta)
        if self.weight == "nelbo":
            losses = self.steps * (kl - self.auxiliary * of_x)
        else:  # where nothing is ever revealed, β = 0, there is no KL
            losses = kl / beta.clamp(min=torch.finfo(beta.dtype).tiny) - self.auxiliary * of_x
        ce = torch.log(-torch.expm1(of_mask)) - of_x
        return {"loss": losses.to(ce.dtype), "cross_entropy": ce}

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        self.begin(batch)
        T = self.steps
        i = (self.times(batch.index).double() * T).ceil().long().clamp(1, T)
        noised = self.masked_uniformly(batch, (i / T).float())
        beta = unmask_probability(i, T, self.noise.alpha)[:, None].expand(noised.masked.shape)[noised.masked]
        weight = torch.ones_like(noised.p)
        loss, ce = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch, self.terms, beta)
        return metrics(noised, ce, loss)

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
            of_x, of_mask = self.chunked_losses(self.head_inputs_at(z, t, masked, x), x[masked], self.outcomes).values()
            beta = unmask_probability((t * T).round().long(), T, self.noise.alpha)[:, None].expand(masked.shape)[masked]
            return {"d3pm": step_kl(of_x, of_mask, beta)}

        return average(losses, tokens, masks(), self.context.mask_id)
