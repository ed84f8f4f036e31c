"""The training step of `sedd`. B rows of a micro-batch, L tokens, V predictable tokens, N masked positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atat_zoo.objectives.denoising import DenoisingModule, dense, metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


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
        """Take the parts, and the weight ω by name."""
        super().__init__(context, parts, batch_size)
        self.weight = weight
        with torch.no_grad():
            still = self.backbone.head(
                self.backbone.embedding.weight.new_zeros(1, self.backbone.embedding.embedding_dim)
            )
        # What the head gives before it has learned anything: log V, or 0 with the unigram bias. A buffer, because
        # the token counts behind that bias are not there when a saved model is built again.
        self.register_buffer("offset", still.float().logsumexp(-1)[0])

    def ratios(self, z: Tensor, t: Tensor | None, where: Tensor) -> Tensor:
        """Return f = log(s_y/ρ) at N positions, float32 [N, V]."""
        return self.logits(z, t, where) - self.offset

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the metrics; see `ObjectiveModule`."""
        self.begin(batch)
        step = self.masked_uniformly(batch, self.times(batch.index))
        ce, excess = score_entropy(self.ratios(step.z, step.t, step.masked), step.x[step.masked])
        losses = dense(step.masked, ce + excess)
        if self.weight == "nelbo":
            losses = losses * self.noise.weight(step.t)[:, None]
        return metrics(step, dense(step.masked, ce), normalised(losses, batch))

    def token_bounds(self, logits: Tensor, x: Tensor, quantity: str) -> dict[str, Tensor]:
        """Return the cross-entropy of softmax f; and `sedd`, with the penalty, on the same masks.

        The score entropy is an integral over continuous time, so a bound of discrete steps goes without it.
        """
        ce, excess = score_entropy(logits - self.offset, x)
        return {quantity: ce} | ({"sedd": ce + excess} if quantity == "nelbo" else {})
