"""The training step of sedd. B rows of a micro-batch, L tokens, V predictable tokens, N masked positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.objectives import Batch
from atat_zoo.objectives.denoising import DenoisingModule, StatefulParts, metrics
from atat_zoo.objectives.masked import SEDDObjective
from atat_zoo.registry import Context


def score_entropy(f: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of S − f_x − 1, S = Σ e^f, in nats, [N] each, from f [N, V] and the clean tokens x [N].

    They are the cross-entropy of softmax f, and S − 1 − log S ≥ 0, which is 0 where S = 1.
    """
    log_s = f.logsumexp(-1)
    return log_s - f.gather(-1, x[:, None])[:, 0], log_s.expm1() - log_s


class SEDDModule(DenoisingModule):
    """A head that gives log-ratios; its softmax is the denoiser."""

    offset: Tensor

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int, objective: SEDDObjective) -> None:
        super().__init__(context, parts, batch_size)
        self.weight = objective.weight
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

    @override
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        self.begin(batch)
        levels = self.levels(self.times(batch.index), batch)
        noised = self.masked_uniformly(batch, levels.t, levels.rate)
        weight = levels.weight if self.weight == "nelbo" else torch.ones_like(levels.rate)
        weight = weight[:, None].expand(noised.masked.shape)
        loss, ce = self.weighted_loss(self.masked_hidden_states(noised), noised, weight, batch, self.terms)
        if self.training:
            self.stateful.observe(noised, ce)
        return metrics(noised, ce, loss)

    @override
    def token_bounds(self, logits: Tensor, x: Tensor, quantity: str) -> dict[str, Tensor]:
        # The score entropy is an integral over continuous time, so a bound of discrete steps does not include it.
        ce, excess = score_entropy(logits - self.offset, x)
        return {quantity: ce} | ({"sedd": ce + excess} if quantity == "nelbo" else {})
