"""The modules of `mlm`, `sedd` and `d3pm`, derived from `DenoisingModule`.

Shapes: B rows of a micro-batch, L tokens, width D, V predictable tokens, N masked positions.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion import likelihood_bounds
from atat_zoo.diffusion.chunks import wide
from atat_zoo.diffusion.likelihood_bounds import Estimate, WeightedMask, unmask_probability
from atat_zoo.diffusion.positions import pairs
from atat_zoo.diffusion.randomness import fold, sequence_keys, uniform
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.modeling.objectives import Batch
from atat_zoo.modeling.objectives.denoising import DenoisingModule, metrics
from atat_zoo.registry import Context

Weight: TypeAlias = Literal["nelbo", "simple"]


class MLMModule(DenoisingModule):
    """The module of `mlm`: a denoiser trained at one mask rate."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, rate: float) -> None:
        # Training uses no schedule; estimators of the bound that follow one get the linear schedule.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)
        self.rate = rate

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        n = batch.maskable.sum(1)
        k = (self.rate * n).round().long().clamp(min=1).minimum(n)  # 0 where a row has nothing maskable
        order = likelihood_bounds.uniform_order(batch.maskable, sequence_keys(self.context.seed, "mask", batch.index))
        masked, share = (order < k[:, None]) & batch.maskable, k / n.clamp(min=1)
        noised = self.noised(batch, masked, share, share[:, None] * batch.maskable)
        weight = (n / k.clamp(min=1))[:, None].expand(masked.shape)
        loss, found = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch)
        ce = found["cross_entropy"]
        return metrics(noised, ce, loss)


def score_entropy(f: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of S − f_x − 1, S = Σ e^f, each in nats [N], from f [N, V] and the clean tokens x [N].

    The terms are the cross-entropy of softmax f and S − 1 − log S ≥ 0, which is 0 if S = 1.
    """
    log_s = f.logsumexp(-1)
    return log_s - f.gather(-1, x[:, None])[:, 0], log_s.expm1() - log_s


class SEDDModule(DenoisingModule):
    """The module of `sedd`: its head predicts log-ratios, whose softmax is the denoiser."""

    offset: Tensor

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, *, weight: Weight) -> None:
        super().__init__(context, parts, batch_size)
        self.weight = weight
        self.follow(rates=self.rates)
        with torch.no_grad():
            untrained = self.backbone.head(torch.zeros_like(self.backbone.embedding.weight[:1]))
        # The head's log Σ e^f before training: log V, or 0 with the unigram bias. A buffer, because
        # the token counts behind that bias are not available when a saved model is built again.
        self.register_buffer("offset", untrained.float().logsumexp(-1)[0])

    def terms(self, logits: Tensor, x: Tensor, _: Tensor) -> dict[str, Tensor]:
        """Return the score entropy and its first term, each [N], with f = log(s_y/ρ) from the logits [N, V]."""
        ce, excess = score_entropy(logits - self.offset, x)
        return {"loss": ce + excess, "cross_entropy": ce}

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        levels = self.levels(self.times(batch.index), batch)
        noised = self.masked_uniformly(batch, levels.t, levels.rate)
        weight = levels.weight if self.weight == "nelbo" else torch.ones_like(levels.rate)
        weight = weight[:, None].expand(noised.masked.shape)
        loss, found = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch, self.terms)
        ce = found["cross_entropy"]
        self.observe(noised, ce)
        return metrics(noised, ce, loss)

    @override
    def token_bounds(self, logits: Tensor, x: Tensor, quantity: str) -> dict[str, Tensor]:
        # The score entropy is an integral over continuous time, so a bound of discrete steps does not include it.
        ce, excess = score_entropy(logits - self.offset, x)
        return {quantity: ce} | ({} if quantity.startswith("discrete") else {"sedd": ce + excess})


def step_kl(log_p: Tensor, log_mu: Tensor, beta: Tensor) -> Tensor:
    """Return KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) at masked positions, in nats, [N] in the precision of β.

    It is computed as −β log p̃(x) − (1 − β) log1p(βμ/(1 − β)), which is accurate for small β or μ; at β = 1, the second
    term is 0. The arguments are [N]: log p̃_θ(x) of the clean token among V + 1 outcomes, log μ of the mask, and β in
    [0, 1], float64, or float32 on a device without float64.
    """
    stay = 1 - beta
    odds = beta * log_mu.to(beta.dtype).exp() / stay.clamp(min=torch.finfo(stay.dtype).tiny)
    return -beta * log_p - stay * odds.log1p()


class D3PMModule(DenoisingModule):
    """The module of `d3pm`: a denoiser with the mask as an additional outcome, from a separate linear layer."""

    def __init__(
        self,
        context: Context,
        parts: Mapping[str, Any],
        batch_size: int,
        *,
        steps: int,
        weight: Weight,
        auxiliary: float,
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
        """Return log p̃_θ of the true token and of the mask, among V + 1 outcomes, each [N], at N masked positions."""
        log_p = torch.cat([logits, wide(self.mask_head(hidden))], dim=-1).log_softmax(-1)
        return {"token": log_p.gather(-1, x[:, None])[:, 0], "mask": log_p[:, -1]}

    def terms(self, logits: Tensor, x: Tensor, hidden: Tensor, beta: Tensor) -> dict[str, Tensor]:
        """Return the loss at N positions and the cross-entropy of the prediction renormalised over V tokens, [N]."""
        of_x, of_mask = self.outcomes(logits, x, hidden).values()
        kl = step_kl(of_x, of_mask, beta)
        if self.weight == "nelbo":
            losses = self.steps * (kl - self.auxiliary * of_x)
        else:  # if nothing is ever revealed (β = 0), there is no KL
            losses = kl / beta.clamp(min=torch.finfo(beta.dtype).tiny) - self.auxiliary * of_x
        ce = torch.log(-torch.expm1(of_mask)) - of_x
        return {"loss": losses.to(ce.dtype), "cross_entropy": ce}

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        batch = self.begin(batch)
        T = self.steps
        i = (self.times(batch.index).double() * T).ceil().long().clamp(1, T)
        noised = self.masked_uniformly(batch, (i / T).float())
        beta = unmask_probability(i, T, self.noise.alpha)[noised.where[0]]
        weight = torch.ones_like(noised.p)
        loss, found = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch, self.terms, beta)
        ce = found["cross_entropy"]
        return metrics(noised, ce, loss)

    @override
    def own_bounds(
        self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int, documents: Tensor | None = None
    ) -> dict[str, Estimate]:
        # `d3pm`, an estimate of Σ_{i=1..T} E ΣKL_i with i stratified over the draws (see `discrete_t`). The process
        # knows the time, so a time-conditioned network gets t = i/T. A schedule that does not go from α = 1 to α = 0
        # has no such bound.
        if not self.noise.complete:
            return {}
        T = self.steps

        def masks() -> Iterator[WeightedMask]:
            for j, i in enumerate(likelihood_bounds.counts(torch.full_like(keys, T), keys, draws)):
                t = i.double() / T
                rate = 1 - self.noise.alpha(t)
                masked = (uniform(fold(keys, j), tokens.shape[1], torch.float64) < rate[:, None]) & maskable
                yield WeightedMask(masked=masked, weight=torch.full_like(t, T), t=t)

        def losses(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
            assert t is not None
            where = pairs(masked)
            head_inputs = self.head_inputs_of(z, t, masked, x, documents).at(where)
            of_x, of_mask = self.chunked_losses(head_inputs, x[where], self.outcomes).values()
            beta = unmask_probability((t * T).round().long(), T, self.noise.alpha)[where[0]]
            return {"d3pm": step_kl(of_x, of_mask, beta)}

        return likelihood_bounds.average(losses, tokens, masks(), self.context.mask_id)
