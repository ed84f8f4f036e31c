"""Estimators without parameters: a constant, and a table by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from atat_zoo.registry import Context


class Constant(nn.Module):
    """The same importance everywhere."""

    reads_time = False

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        return torch.full(tokens.shape, self.value, device=tokens.device)


class Table(nn.Module):
    """Importance by token, from a table [V + 1]; saved with the model, so that counts are needed only once."""

    reads_time = False

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.values: Tensor

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        return self.values[tokens]


def surprisal(context: Context) -> Tensor:
    """Return −log p(v) of the training tokens over its largest value, float32 [V + 1]; ½ without counts."""
    values = torch.full((context.vocabulary_size + 1,), 0.5)
    if context.counts is not None:
        counts = torch.from_numpy(context.counts).double() + 1.0
        nats = -(counts / counts.sum()).log()
        # A single token is certain: 0 nats over 0.
        values[:-1] = (nats / nats.max().clamp(min=1e-300)).float()
    return values
