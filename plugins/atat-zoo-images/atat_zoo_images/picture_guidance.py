"""The guidance `pixels`, which generates a picture where a picture is expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from atat_zoo.generation.guidance import Guidance
from atat_zoo.registry import component
from atat_zoo_images.grid_orders import grid_of

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.positions import Where
    from atat_zoo.generation.text_generator import TextGenerator


@component
class PixelsGuidance(Guidance):
    """Only pixels in the picture, and only labels before it; a model of text is not guided.

    A model gives other tokens a small probability, which classifier-free guidance can raise: apply this guidance to its
    result, with `combined`.
    """

    name = "pixels"
    summary = "only pixels in a picture, and only labels before it"

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        import torch

        from atat_zoo.diffusion.positions import pairs
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser, normalised

        tokenizer = text_generator.tokenizer
        pictures = [tokenizer.picture([i]) for i in range(tokenizer.vocabulary_size)]
        if None in pictures:
            return text_generator
        is_label = torch.tensor([each == [[None]] for each in pictures], device=text_generator.device)

        def change(log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
            _, position = pairs(where)
            wrong = (position >= grid_of(tokens.shape[1])[0])[:, None] == is_label
            return normalised(log_probs.masked_fill(wrong, float("-inf")), log_probs)

        return attrs.evolve(text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, change))
