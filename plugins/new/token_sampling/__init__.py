"""Token sampling that excludes improbable tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.token_sampling import TokenSampling
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderTokenSampling(TokenSampling):
    """Min-p sampling, which only samples tokens whose probability is at least `share` times the highest."""

    name = "placeholder"
    summary = "min-p sampling: only tokens with at least a fraction of the highest probability"
    refs = ("arXiv:2407.01082",)

    share: float = param(0.1, help="minimum probability relative to the highest probability", gt=0, le=1)
    temperature: float = param(1.0, help="temperature; 0 is greedy", ge=0)

    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return scores [M, V] for M positions and V tokens, and the temperature; p ∝ exp(score / temperature)."""
        least = log_probs.amax(-1, keepdim=True) + math.log(self.share)
        return log_probs.masked_fill(log_probs < least, -math.inf), self.temperature


@hookimpl
def atat_zoo_token_sampling() -> list[type]:
    """Return the kinds of token sampling in this package."""
    return [PlaceholderTokenSampling]
