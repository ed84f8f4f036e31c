"""Guidance that penalises repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from atat_zoo.generation.guidance import Guidance
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.positions import Where
    from atat_zoo.generation.text_generator import TextGenerator

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderGuidance(Guidance):
    """Subtracts a penalty from a token's logit for each visible occurrence of the token in the text."""

    name = "placeholder"
    summary = "frequency penalty: lowers a token's logit for each occurrence"
    refs = ("arXiv:1909.05858",)

    strength: float = param(
        0.5, help="penalty in nats per occurrence; 0 disables the penalty, and negative values reward repetition"
    )

    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        """Return a text generator whose denoiser applies the penalty; with strength 0, return the given one."""
        if not self.strength:
            return text_generator
        import torch

        from atat_zoo.diffusion.positions import pairs
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser, normalised

        def change(log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
            # One more column, for masks.
            shape = (len(tokens), log_probs.shape[1] + 1)
            seen = torch.zeros(shape, dtype=log_probs.dtype, device=tokens.device)
            seen.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=seen.dtype))
            return normalised(log_probs - self.strength * seen[pairs(where)[0], :-1], log_probs)

        return attrs.evolve(text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, change))


@hookimpl
def atat_zoo_guidance() -> list[type]:
    """Return the kinds of guidance in this package."""
    return [PlaceholderGuidance]
