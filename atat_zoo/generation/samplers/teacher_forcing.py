"""A known text in place of the draws of a run, for its policy NLL (docs/explanation/mathematics.md)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from atat_zoo.diffusion.decoding_step import Step


class TeacherForcing:
    """A text, int64 [B, L], that a run writes where it would draw, and the policy NLL of each token.

    `nats` is −log of the probability with which it would have been drawn, ∞ if never, float64 [B, L]; 0 elsewhere.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.nats = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
        self.first = 0

    def take(
        self,
        log_prob: Callable[[Tensor, Tensor, Step, Tensor], Tensor],
        log_probs: Tensor,
        step: Step,
        row: Tensor,
        position: Tensor,
    ) -> Tensor:
        """Return the tokens, int64 [M], at rows of the step and positions, int64 [M], and record their nats.

        `log_prob` is that of the `TokenSampling` that would have drawn them from [M, V].
        """
        index = step.rows[row], self.first + position
        tokens = self.tokens[index]
        self.nats[index] = -log_prob(tokens, log_probs, step, row)
        return tokens

    def at(self, first: int) -> TeacherForcing:
        """Return the same, with the same `nats`, for a run on the part of the text that begins at position `first`."""
        part = copy.copy(self)
        part.first = first
        return part
