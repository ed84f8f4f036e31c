"""A trained module as a denoiser, which a sampler and a bound ask. N positions of B rows of L tokens, V tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from atat_zoo.errors import UserError
from atat_zoo.modeling.diffusion.contracts import Denoiser
from atat_zoo.modeling.diffusion.positions import Where
from atat_zoo.system.devices import moved

if TYPE_CHECKING:
    from atat_zoo.modeling.objectives.denoising import DenoisingModule, HeadInputs


class Predictor(Denoiser):
    """p_θ(x_i | z) of a module, which scores visible tokens and has the importance of the module's estimator."""

    scores_visible_tokens = True

    def __init__(self, module: DenoisingModule) -> None:
        self.module = module
        self.mask_id, self.window = module.context.mask_id, module.context.length
        self.reads_time = module.backbone.reads_time
        self.estimates_importance = module.estimator is not None
        if module.estimator is not None:
            self.importance_reads = module.estimator.reads

    @override
    def time_at(self, rate: Tensor) -> Tensor:
        return self.module.noise.time_at(rate)

    @override
    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        if not self.estimates_importance:
            return None
        t = self.time_at(masked.float().mean(1)) if self.module.estimator.reads_time else None
        return self.module.importance(tokens, torch.ones_like(masked), t)  # all tokens count as maskable

    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        """Return what the head reads at every position, [B, L]."""
        return self.module.head_inputs(tokens, t)

    def log_probs(self, head_inputs: HeadInputs, device: torch.device) -> Tensor:
        """Return log-probabilities of N positions, [N, V], on the device of the text."""
        log_probs = moved(self.module.logits(head_inputs).log_softmax(-1), device)
        # One logit of a row makes all of the row so. An accelerator would have to be waited for.
        if log_probs.device.type == "cpu" and bool(log_probs[..., :1].isnan().any()):
            raise UserError(
                "the network computes logits that are no numbers: its weights are damaged, or too large for its "
                "precision; compute with --precision fp32, or take another model"
            )
        return log_probs

    @override
    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        return self.log_probs(self.head_inputs(tokens, t).at(where), tokens.device)

    @override
    def everywhere(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        head_inputs = self.head_inputs(tokens, t)
        logits = self.module.logits(head_inputs.at(visible))
        loss = F.cross_entropy(logits, moved(tokens[visible], logits.device), reduction="none")
        return self.log_probs(head_inputs.at(where), tokens.device), -moved(loss, tokens.device)
