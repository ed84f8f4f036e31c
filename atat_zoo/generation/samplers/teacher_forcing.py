"""Where the tokens of a run come from: the draw, or a known text, for its policy NLL (docs/mathematics.md)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.generation.samplers.draw import Draw
from atat_zoo.modeling.diffusion.randomness import fold
from atat_zoo.modeling.diffusion.steps import Step


class TokenSource:
    """The draw, with random numbers of the row's seed, the number of the step and the position."""

    def __call__(self, draw: Draw, log_probs: Tensor, step: Step, row: Tensor, position: Tensor) -> Tensor:
        """Return tokens, int64 [M], at rows of the step and positions, int64 [M]; log_probs are [M, V]."""
        return draw(log_probs, fold(step.keys("draw")[row], position), step, row)

    def at(self, first: int) -> TokenSource:
        """Return the source for a run on a part of the text, which has position first + i as its position i."""
        return self


class TeacherForcing(TokenSource):
    """A text, int64 [B, L], that a run writes where it would draw, and the policy NLL of each token.

    `nats` is −log of the probability with which it would have been drawn, ∞ if never, float64 [B, L]; 0 elsewhere.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.nats = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
        self.first = 0

    @override
    def __call__(self, draw: Draw, log_probs: Tensor, step: Step, row: Tensor, position: Tensor) -> Tensor:
        index = step.rows[row], self.first + position
        tokens = self.tokens[index]
        self.nats[index] = -draw.log_prob(tokens, log_probs, step, row)
        return tokens

    @override
    def at(self, first: int) -> TeacherForcing:
        part = copy.copy(self)  # which writes into the same nats
        part.first = first
        return part
