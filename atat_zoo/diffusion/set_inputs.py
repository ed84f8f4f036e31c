"""The inputs of a set-causal network: of a pass over all steps, and of one that verifies drafts and drafts on.

Shapes: B or A rows, L positions, T inputs, N predictions, n + 1 predicted steps for each step from which a pass
predicts (see `Denoiser.predict_ahead`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atat_zoo.diffusion.attention import attention_mask
from atat_zoo.diffusion.positions import to_host


class QueryAndContentTokens(NamedTuple):
    """The T inputs of the network: L queries, which predict their positions unless given, and then content tokens."""

    tokens: Tensor  # int64 [B, T]
    positions: Tensor  # int64 [B, T]
    attention: Any  # which inputs each input sees: a bool mask or a `BlockMask`


class TokenRoles(NamedTuple):
    """The roles of the inputs at positions 0 … L, all [B, L + 1]; the first input is the start, which is given."""

    token: Tensor  # the token
    readable_from: Tensor  # the step from which that token may be read
    step: Tensor  # the input's step: that of the token that it predicts, or else `readable_from`
    content_only: Tensor  # whether the token needs an extra input at this position, which predicts nothing


def token_roles(x: Tensor, steps: Tensor, mask_id: int) -> TokenRoles:
    """Return the roles for tokens x and their steps, int64 [B, L], without empty steps; see `SetCausalObjective`."""
    ready = F.pad(steps + 1, (1, 0))
    own = F.pad(steps, (0, 1), value=-1)  # the step of the prediction there, −1 for none
    step = torch.where(own >= 0, own, ready)
    alone = (own >= 0) & (ready != step) & (ready <= steps.amax(1, keepdim=True))
    return TokenRoles(F.pad(x, (1, 0), value=mask_id), ready, step, alone)


def query_and_content_tokens(
    of: TokenRoles, mask_id: int, others: int, in_blocks: bool = False
) -> QueryAndContentTokens:
    """Return the inputs at positions 0 … L and `others` extra inputs per row, which only provide their tokens."""
    readable = of.readable_from <= of.step
    content, step = readable & (of.readable_from == of.step), of.step
    tokens = torch.where(readable, of.token, mask_id)
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    if others:
        where = of.content_only.sort(dim=1, descending=True, stable=True).indices[:, :others]
        own, more = (tokens, positions, step, content), (of.token, positions, of.readable_from, of.content_only)
        joined = (torch.cat([a, b.gather(1, where)], 1) for a, b in zip(own, more, strict=True))
        tokens, positions, step, content = joined
    # With inputs sorted by step, blocks could be skipped for any steps; but dropout draws by the place of an input.
    # An input without a token is never seen.
    seen_from = step.masked_fill(~content, torch.iinfo(step.dtype).max)

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (seen_from[row, key] <= step[row, query]) | (query == key)

    return QueryAndContentTokens(
        tokens, positions, attention_mask(sees, len(tokens), tokens.shape[1], tokens.device, in_blocks=in_blocks)
    )


def num_extra_content_tokens(needed: Tensor, of: TokenRoles) -> int:
    """Return how many extra inputs to add to all rows if they need `needed`, int64 [B] on the host.

    The number is rounded up, because a compiled network is compiled again for every new shape.
    """
    most = int(needed.max())
    return most if most < 2 else min(of.step.shape[1] - 1, -(-most // 8) * 8)


class DraftInputs(NamedTuple):
    """The inputs of a pass, and where its predictions are; `cached` and `rows` are on the host."""

    tokens: Tensor  # int64 [A, T]
    positions: Tensor  # int64 [A, T], in 0 … L
    sees: Tensor  # which new inputs each input attends to, bool [A, T, T]
    cached: Tensor  # number of final tokens that were read before, int64 [A]
    rows: Tensor  # int64 [A]
    slot: Tensor  # the input that predicts each position from all steps before first + j, int64 [A, L + 1, n + 1]
    first: Tensor  # int64 [A]

    def place(self, row: Tensor, position: Tensor, before: Tensor) -> Tensor:
        """Return the places, int64 [N], of the inputs that predict positions from all steps below `before`."""
        return self.slot[row, position, before - self.first[row]]


def draft_inputs(
    tokens: Tensor, steps: Tensor, first: Tensor, length: int, mask_id: int, rows: Tensor | None
) -> DraftInputs:
    """Return the inputs for the arguments of `Denoiser.predict_ahead` and the row numbers, int64 [A]; None: all.

    They are computed on the host with NumPy, whose overhead for small arrays is a fraction of torch's.
    """
    (A, L), device = tokens.shape, tokens.device
    numbers = torch.arange(A, device=device) if rows is None else rows
    host = to_host(torch.cat([tokens, steps, first[:, None], numbers[:, None]], 1)).numpy()
    own, begin = host[:, L:-2], host[:, -2:-1]
    # As in `SetCausalObjective`, the input at position i = 0 … L has the token i − 1 and is read from `ready` on.
    text, ready = np.full((A, L + 1), mask_id), np.zeros((A, L + 1), dtype=np.int64)
    text[:, 1:], ready[:, 1:] = host[:, :L], own + 1
    there = text != mask_id
    there[:, 0] = True
    row, position = (there & (ready >= begin) & (ready <= own.max(1, keepdims=True))).nonzero()
    # A prediction given all steps before j needs its own input, unless a content token there is read from j on.
    before = begin + np.arange(length + 1)
    ahead = own[..., None] - before[:, None]
    asked = (ahead >= 0) & (ahead <= length) & (ready[:, :L, None] != before[:, None])
    query, place, j = (asked & (before <= (ready * there).max(1, keepdims=True))[:, None]).nonzero()
    level, queried = ready[row, position], before[query, j]
    seen = np.where(ready[query, place] < queried, text[query, place], mask_id)
    content = np.array([row, position, text[row, position], level, level])
    never = np.full_like(j, L + 2)  # the step from which a query can be seen
    every = np.concatenate([content, np.array([query, place, seen, queried, never])], 1)
    # In each row, content tokens come first, sorted by step.
    row, position, _, level, _ = every = every[:, np.lexsort((every[-1], every[0]))]
    column = np.arange(len(row)) - row.searchsorted(row)
    read = np.zeros((4, A, column.max() + 1), dtype=np.int64)
    read[-1] = L + 2  # where a row has fewer inputs
    read[:, row, column] = every[1:]
    sees = (read[3][:, None] <= read[2][..., None]) | np.eye(read.shape[2], dtype=bool)
    slot = np.zeros((A, L + 1, length + 1), dtype=np.int64)
    slot[row, position, level - begin[row, 0]] = column
    T, cached = read.shape[2], torch.from_numpy((ready < begin).sum(1))
    flat = np.concatenate([read[1], read[0], sees.reshape(A, -1), slot.reshape(A, -1)], 1)  # one copy to the device
    copied = torch.from_numpy(flat).to(device, non_blocking=True).split([T, T, T * T, slot[0].size], 1)
    sees_there, slot_there = copied[2].view(A, T, T).bool(), copied[3].view(slot.shape)
    return DraftInputs(copied[0], copied[1], sees_there, cached, torch.from_numpy(host[:, -1]), slot_there, first)


def inverse(order: Tensor) -> Tensor:
    """Return the inverses of permutations, int64 [A, N]."""
    numbers = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter_(1, order, numbers)
