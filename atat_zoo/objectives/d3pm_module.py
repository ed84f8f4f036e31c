"""The training step of `d3pm`. B rows of a micro-batch, L tokens, D width, V predictable tokens, N masked positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.bounds import WeightedMask, average, counts, reveal
from atat_zoo.diffusion.randomness import fold, uniform
from atat_zoo.objectives.denoising import DenoisingModule, dense, metrics, normalised, wide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atat_zoo.diffusion.bounds import Estimate
    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


def step_kl(log_p: Tensor, log_mu: Tensor, beta: Tensor) -> Tensor:
    """Return KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) at masked positions, nats, float64 [N].

    Written −β log p̃(x) − (1 − β) log1p(βμ/(1 − β)), which keeps its digits for small β and for small μ; at β = 1 the
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
    """A denoiser with one outcome more, the mask, by a linear layer of its own."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        steps: int,
        weight: str,
        auxiliary: float,
    ) -> None:
        """Take the parts, and the parameters of `D3PMObjective`."""
        super().__init__(context, parts, batch_size)
        self.steps, self.weight, self.auxiliary = steps, weight, auxiliary
        width = self.backbone.embedding.embedding_dim
        self.mask_head = nn.Linear(width, 1)
        with torch.no_grad():
            still = self.backbone.head(self.backbone.embedding.weight.new_zeros(1, width)).float()
            nn.init.zeros_(self.mask_head.weight)
            # The mean probability of a token before training, whatever the bias of the head.
            self.mask_head.bias.copy_(still.logsumexp(-1) - math.log(context.vocabulary_size))

    def outcomes(self, z: Tensor, t: Tensor | None, where: Tensor) -> Tensor:
        """Return log p̃_θ over the V tokens and the mask, the last, at N positions, float32 [N, V + 1]."""
        hidden = self.hidden(z, t)[where]
        logits = torch.cat([self.backbone.head(hidden), self.mask_head(hidden)], dim=-1)
        return wide(logits).log_softmax(-1)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the metrics; see `ObjectiveModule`."""
        self.begin(batch)
        T = self.steps
        i = (self.times(batch.index).double() * T).ceil().long().clamp(1, T)
        step = self.masked_uniformly(batch, (i / T).float())
        log_p = self.outcomes(step.z, step.t, step.masked)
        of_x, of_mask = log_p.gather(-1, step.x[step.masked][:, None])[:, 0], log_p[:, -1]
        beta = reveal(i, T, self.noise.alpha)[:, None].expand(step.masked.shape)[step.masked]
        kl = step_kl(of_x, of_mask, beta)
        if self.weight == "nelbo":
            losses = T * (kl - self.auxiliary * of_x)
        else:  # where nothing is ever revealed, β = 0, there is no KL
            losses = kl / beta.clamp(min=torch.finfo(beta.dtype).tiny) - self.auxiliary * of_x
        # Of the prediction renormalised over the V tokens, as the other objectives report it.
        ce = torch.log(-torch.expm1(of_mask)) - of_x
        return metrics(step, dense(step.masked, ce), normalised(dense(step.masked, losses.to(ce.dtype)), batch))

    def own_bounds(self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int) -> dict[str, Estimate]:
        """Return `d3pm`, an estimate of Σ_{i=1..T} E ΣKL_i with i stratified over the draws; see `discrete_t`.

        The process knows the time, so a time-conditioned network is given t = i/T. A schedule that does not go from
        nothing masked to everything has no such bound.
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
            log_p = self.outcomes(z, t, masked)
            beta = reveal((t * T).round().long(), T, self.noise.alpha)[:, None].expand(masked.shape)[masked]
            return {"d3pm": step_kl(log_p.gather(-1, x[masked][:, None])[:, 0], log_p[:, -1], beta)}

        return average(losses, tokens, masks(), self.context.mask_id)
