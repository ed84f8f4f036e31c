"""A token sampling that excludes improbable tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.token_sampling import TokenSampling
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderTokenSampling(TokenSampling):
    """Min-p sampling: draws from the tokens with at least a fraction of the highest probability."""

    name = "placeholder"
    summary = "min-p sampling: from tokens with at least a fraction of the highest probability"
    refs = ("arXiv:2407.01082",)

    share: float = param(0.1, help="minimum probability relative to the highest", gt=0, le=1)
    temperature: float = param(1.0, help="temperature; 0 is greedy", ge=0)

    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return scores [M, V] and the temperature: p ∝ exp(score / temperature)."""
        least = log_probs.amax(-1, keepdim=True) + math.log(self.share)
        return log_probs.masked_fill(log_probs < least, -math.inf), self.temperature


@hookimpl
def atat_zoo_token_sampling() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderTokenSampling]
