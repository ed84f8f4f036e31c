"""What the networks share: embedding and head with published token ids, positions, and rotary embedding.

Shapes: B sequences, L tokens, D width, H heads, V predictable tokens, R rows in the published embedding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.system.errors import UserError
from atat_zoo_checkpoints.model_import import refuse_without_row

if TYPE_CHECKING:
    from atat_zoo.registry import Context

# Logit of a token that is never predicted: its probability is 0 in every precision, and products with it are finite.
_NEVER = -1e4


class PublishedNetwork(nn.Module):
    """Network whose embedding and head have R rows, which include those of the zoo's V + 1 tokens.

    The zoo's mask V is mapped to the published mask, which is never predicted, or in autoregressive models to BOS.
    """

    def __init__(
        self,
        context: Context,
        *,
        name: str,
        rows: int | None,
        mask_id: int | None,
        width: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.V = context.vocabulary_size
        self.rows = self.V + 1 if rows is None else rows
        self.mask_id = self.rows - 1 if mask_id is None else mask_id
        refuse_without_row(context, self.rows, "backbone.rows")
        if self.rows <= self.mask_id:
            raise UserError(
                f"backbone.mask_id = {self.mask_id}, but {name} has {self.rows} embeddings; use an id below {self.rows}"
            )
        self.table = nn.Embedding(self.rows, width, dtype=dtype)
        never = None if context.shifted or self.mask_id >= self.V else self.mask_id
        self.head = Head(self.table, self.V, never)

    @property
    def embedding(self) -> Embedding:
        """Embedding of the zoo's tokens; see `BackboneModule`."""
        return Embedding(self)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, L, D] of the zoo's tokens [B, L]."""
        return self.table(torch.where(tokens == self.V, self.mask_id, tokens))


class Embedding(nn.Module):
    """Embedding of the zoo's ids 0 … V, which shares the network's weights without saving them twice."""

    def __init__(self, network: PublishedNetwork) -> None:
        super().__init__()
        self.of = [network]  # in a list, so that the network is not a submodule
        self.num_embeddings, self.embedding_dim = network.V + 1, network.table.embedding_dim
        self.weight = network.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, L, D] of tokens [B, L]."""
        return self.of[0].embed(tokens)


class Head(nn.Module):
    """Head that maps hidden states [..., D] to logits [..., V]; its weight and bias have R rows."""

    def __init__(self, table: nn.Embedding, V: int, never: int | None) -> None:
        super().__init__()
        self.V, self.never = V, never
        self.weight = nn.Parameter(torch.zeros_like(table.weight))
        self.bias: nn.Parameter | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., D]."""
        logits = F.linear(hidden, self.weight[: self.V], None if self.bias is None else self.bias[: self.V])
        if self.never is not None:
            logits[..., self.never] = _NEVER  # in place, because the logits are large
        return logits


def positions_of(tokens: Tensor, positions: Tensor | None, attention: Any, cache: Any, *, longest: int) -> Tensor:
    """Return `positions`, or else 0 … L − 1; raise a `ValueError` for L > `longest` then, or a cache without them."""
    if cache is not None and (positions is None or isinstance(attention, str)):
        raise ValueError("with a cache, pass positions, and attention as a mask")
    if positions is not None:
        return positions
    if tokens.shape[1] > longest:
        raise ValueError(f"{tokens.shape[1]} tokens exceed this backbone's maximum of {longest}")
    return torch.arange(tokens.shape[1], device=tokens.device)


def rates(width: int, theta: float = 10_000.0) -> Tensor:
    """Return the angle per position for each pair of dimensions in a head, float32 [width/2] (Su et al., 2021)."""
    return 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)


def rotation(positions: Tensor, per_position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines and the sines of the rotary angles, each [L, 1, D/2H] or [B, L, 1, D/2H]."""
    angles = (positions.float()[..., None] * per_position)[..., None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Return x [B, L, H, D/H] with each head, or its first part, rotated by the angles of its position."""
    cos, sin = by
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], dim=-1)
