"""The true tokens in place of the draw: what a sampler's policy would have paid for a text (MATH 8).

Legend: B rows in the batch, L positions, M positions that a step fills, V predictable tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step
    from atat_zoo.samplers.draw import Draw


class Revealed:
    """A text that a run reveals where it would draw, and the price of each token.

    Attributes:
        tokens: x, int64 [B, L].
        nats: −log of the probability with which each token would have been drawn, ∞ if never, float64 [B, L]; 0 where
            nothing was drawn.
    """

    def __init__(self, tokens: Tensor, nats: Tensor | None = None) -> None:
        """Take the text; `nats` is a tensor of zeros to write into, a new one if None."""
        self.tokens = tokens
        self.nats = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device) if nats is None else nats

    def __call__(self, draw: Draw, log_probs: Tensor, step: Step, row: Tensor, position: Tensor) -> Tensor:
        """Return the true tokens, int64 [M], at rows of the step and positions; log_probs are [M, V]."""
        where = step.rows[row], position
        true = self.tokens[where]
        self.nats[where] = -draw.log_prob(true, log_probs, step, row)
        return true

    def at(self, places: slice) -> Revealed:
        """Return the part at some positions, which writes its prices into this one."""
        return Revealed(self.tokens[:, places], self.nats[:, places])
