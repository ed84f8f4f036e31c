"""A classifier that counts letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.data.tokenizers import TokenizerModel

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderClassifier:
    """p(class | z) = σ(s · (f − c)), where f is the number of `letters` per token of the masked text z (masks: 0)."""

    name = "placeholder"
    summary = "classifies texts by the frequency of certain letters"
    refs = ()

    letters: str = param("e", help="letters to count")
    sharpness: float = param(4.0, help="steepness s", ge=0)
    centre: float = param(0.2, help="number c of letters per token at which the probability is 0.5")

    def build(self, tokenizer: TokenizerModel, length: int) -> Callable[[Tensor], Tensor]:
        """Return a function from masked texts z, int64 [M, L], to log p(class | z), float32 [M]."""
        import torch

        each = [tokenizer.decode([i]) for i in range(tokenizer.vocabulary_size)]
        table = torch.tensor([*(sum(text.count(letter) for letter in self.letters) for text in each), 0.0])

        def classify(tokens: Tensor) -> Tensor:
            found = table.to(tokens.device)[tokens].mean(1)
            return torch.nn.functional.logsigmoid(self.sharpness * (found - self.centre))

        return classify


@hookimpl
def atat_zoo_classifier() -> list[type]:
    """Return the classifiers in this package."""
    return [PlaceholderClassifier]
