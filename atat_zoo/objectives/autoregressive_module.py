"""The training step of `autoregressive`. B rows of a micro-batch, L tokens, D width, V predictable tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atat_zoo.diffusion.bounds import WeightedMask
from atat_zoo.diffusion.contracts import Masked
from atat_zoo.noise import LinearNoise
from atat_zoo.objectives.causal import refuse_method
from atat_zoo.objectives.denoisers import AutoregressivePredictor
from atat_zoo.objectives.denoising import DenoisingModule, metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atat_zoo.bounds import Bound
    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.objectives import Batch
    from atat_zoo.registry import Context


class AutoregressiveModule(DenoisingModule):
    """A denoiser that looks at nothing but the text before."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        # No noise enters; the base takes one for those that have it.
        super().__init__(context, {**parts, "noise": LinearNoise()}, batch_size)

    def hidden(self, z: Tensor, t: Tensor | None) -> Tensor:
        """Return hidden states [B, L, D]; position i has read the start and z_j, j < i."""
        start = torch.full_like(z[:, :1], self.context.mask_id)
        return self.backbone(torch.cat([start, z[:, :-1]], dim=1), attention="causal")

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss and the metrics; see `ObjectiveModule`. Every maskable token counts as masked."""
        self.begin(batch)
        x, maskable = batch.tokens, batch.maskable
        ones = torch.ones(len(x), device=x.device)
        step = Masked(x=x, z=x, masked=maskable, maskable=maskable, t=ones, rate=ones, p=maskable.float())
        ce = self.dense_cross_entropy(step)
        return metrics(step, ce, normalised(ce, batch))

    def predictions(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        """Return logits at the masked positions, each from the clean text before it, [N, V]."""
        return self.logits(x, None, masked)

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> list[WeightedMask]:
        """Return one mask of every token: the chain rule gives −log p_θ(x) itself, and nothing is drawn."""
        refuse_method(method, "autoregressive", "the likelihood is exact and nothing is estimated")
        return [WeightedMask(masked=maskable, weight=torch.ones_like(keys), t=None)]

    def denoiser(self) -> Denoiser:
        """Return p_θ(x_i | x_<i) at positions that have no mask before them."""
        return AutoregressivePredictor(self)
