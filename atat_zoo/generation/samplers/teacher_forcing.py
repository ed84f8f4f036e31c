"""Teacher forcing, which yields a known sequence's NLL under a sampler's policy (docs/explanation/mathematics.md)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from atat_zoo.diffusion.decoding_step import Step


class TeacherForcing:
    """Known sequences, int64 [B, L], whose tokens a run fills in, and the policy NLL of each token.

    `nats`, float64 [B, L], is −log of the probability of sampling each token: ∞ if it is impossible, 0 if it is given.
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
        """Return the known tokens, int64 [M], at a step's rows and positions, int64 [M], and store their NLL in `nats`.

        `log_prob` is the method of that name of `TokenSampling`, and `log_probs` are its argument, [M, V].
        """
        index = step.rows[row], self.first + position
        tokens = self.tokens[index]
        self.nats[index] = -log_prob(tokens, log_probs, step, row)
        return tokens

    def at(self, first: int) -> TeacherForcing:
        """Return a view that shares `nats`, for a run on the subsequence that begins at position `first`."""
        part = copy.copy(self)
        part.first = first
        return part
