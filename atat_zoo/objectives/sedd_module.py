"""The training step of `sedd`. B rows of a micro-batch, L tokens, V predictable tokens, N masked places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atat_zoo.objectives.denoising import DenoisingModule, dense, figures, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atat_zoo.bounds import Bound
    from atat_zoo.diffusion.bounds import Estimate
    from atat_zoo.objectives import Batch
    from atat_zoo.objectives.sedd import SEDDObjective
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

    def __init__(self, spec: SEDDObjective, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        super().__init__(context, parts, batch_size)
        self.spec = spec
        with torch.no_grad():
            still = self.backbone.head(
                self.backbone.embedding.weight.new_zeros(1, self.backbone.embedding.embedding_dim)
            )
        # What the head says before it has learned anything: log V, or 0 with the unigram bias. A buffer, because
        # the token counts behind that bias are not there when a saved model is built again.
        self.register_buffer("offset", still.float().logsumexp(-1)[0])

    def ratios(self, z: Tensor, t: Tensor | None, where: Tensor) -> Tensor:
        """Return f = log(s_y/ρ) at N positions, float32 [N, V]."""
        return self.logits(z, t, where) - self.offset

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and what to report of it; see `ObjectiveModule`."""
        self.begin(batch)
        step = self.masked_uniformly(batch, self.times(batch.index))
        ce, excess = score_entropy(self.ratios(step.z, step.t, step.masked), step.x[step.masked])
        losses = dense(step.masked, ce + excess)
        if self.spec.weight == "nelbo":
            losses = losses * self.noise.weight(step.t)[:, None]
        return figures(step, dense(step.masked, ce), normalised(losses, batch))

    def bound(self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> dict[str, Estimate]:
        """Return the bound of softmax f by the method; and `sedd`, with the penalty, on the same masks.

        The score entropy is an integral over continuous time, so it is left out by a method of discrete steps.
        """
        kept = []

        def losses(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
            ce, excess = score_entropy(self.ratios(z, t, masked), x[masked])
            kept.append(ce + excess)
            return ce

        options = {"mask_id": self.context.mask_id, "noise": self.noise}
        found = {method.quantity: method.estimate(losses, tokens, maskable, keys, draws, **options)}
        if method.quantity == "nelbo":
            # The masks are a function of the keys, so the same come again, in the same order.
            again = iter(kept)
            found["sedd"] = method.estimate(lambda *_: next(again), tokens, maskable, keys, draws, **options)
        return found
