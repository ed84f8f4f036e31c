"""A sampler that combines an order, tokens per step and token sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.composite import CompositeSampler
from atat_zoo.generation.samplers.order import LeftToRightOrder
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.generation.samplers.tokens_per_step import CosineTokensPerStep
from atat_zoo.registry import component, component_param, hookimpl, param

if TYPE_CHECKING:
    from atat_zoo.generation.samplers.token_sampling import TokenSampling

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderSampler(CompositeSampler):
    """Decodes from left to right, with few tokens per step at first and more towards the end."""

    name = "placeholder"
    summary = "decodes from left to right, with few tokens per step at first and then more"
    refs = ()

    steps: int = param(32, help="number of decoding steps", ge=1)
    token_sampling: TokenSampling = component_param("token_sampling", "categorical", help="token sampling")

    def parts(self) -> SamplerChoices:
        """Return the order, tokens per step and token sampling; the default is not to remask or stop early."""
        return SamplerChoices(
            order=LeftToRightOrder(),
            tokens_per_step=CosineTokensPerStep(steps=self.steps),
            token_sampling=self.token_sampling,
        )


@hookimpl
def atat_zoo_sampler() -> list[type]:
    """Return the samplers in this package."""
    return [PlaceholderSampler]
