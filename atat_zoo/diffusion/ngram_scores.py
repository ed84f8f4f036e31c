"""The scores s(y | h) = log p(y | h) / p(y) that the n-gram prior adds to logits, as tensors computed from its counts.

h is the token at an offset of −R … R except 0. Shapes: N predictions, V tokens, M unique pairs; see `NGramScores`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from atat_zoo.system.devices import exact_device, move_to

# A context with more different neighbours than this share of V is stored as a row of all V scores. Every other row is
# read padded to the longest: 1/8 would store half as much and take 1.5 % more of a training step at V = 2,048.
_SHARE = 1 / 16


class NGramScores(NamedTuple):
    """The scores s(y | h) for all neighbour offsets: V + 1 rows per offset, row V for a neighbour that is not visible.

    Most contexts have few different neighbours, and all other tokens share the score −log (1 + N(h)/T(h)), with N and T
    as in `ngram_prior`. So memory grows with the number of pairs, not with V². Only the F rows with many neighbours are
    dense (4·V bytes); the others are sparse, with 8 bytes per neighbour: E entries in all, at most K in a row. Sparse
    rows are read padded to K, so a step never waits for the device.
    """

    full: Tensor  # the dense rows, [F + 1, V]; the first is −1 everywhere
    which: Tensor  # index into `full` of each row, 0 for a sparse row, int64 [2R·(V + 1)]
    scale: Tensor  # factor of that row of `full`: 1, or log (1 + N(h)/T(h)) for the first, [2R·(V + 1)]
    token: Tensor  # the E tokens of the sparse rows, as a view of the K tokens from each on, int32 [E + 1, K]
    score: Tensor  # their s(y | h) + log (1 + N(h)/T(h)), as the same view, [E + 1, K]
    first: Tensor  # index in `token` at which each row begins, int64 [2R·(V + 1)]
    length: Tensor  # number of tokens that each row has there, at most K, int64 [2R·(V + 1)]
    types: Tensor  # T(h), at least 1, [2R·(V + 1)]
    less: Tensor  # log (1 + N(h)/T(h)), [2R·(V + 1)]
    information: Tensor  # H(p(y)) − H(p(y | h)), in nats, [2R·(V + 1)]
    unit: Tensor  # 1/p(y), [V]

    @classmethod
    def of(cls, apart: Sequence[Tensor], tokens: Tensor, dtype: torch.dtype) -> NGramScores:
        """Return the scores from `apart`, pairs with their counts, [M, 3], for each distance, and token counts [V]."""
        V = len(tokens)
        # Values in float64 are computed on a device that supports float64.
        there, exact = tokens.device, exact_device(tokens.device)
        p = (move_to(tokens, exact).double() + 1) / move_to(tokens.sum() + V, exact)
        pairs = [each.long().unbind(1) for each in apart]
        positions = [place for one, other, times in pairs for place in ((one, other, times), (other, one, times))]
        row = torch.cat([place * (V + 1) + context for place, (context, _, _) in enumerate(positions)])
        token, times = (torch.cat(each) for each in list(zip(*positions, strict=True))[1:])
        none = torch.zeros(len(positions) * (V + 1), dtype=torch.int64, device=tokens.device)
        length = none.index_add(0, row, torch.ones_like(row))
        types = length.clamp(min=1)
        rows, of_row, of_token, seen, all_seen = move_to(
            (row, types[row], token, times, none.index_add(0, row, times)), exact
        )
        lacks = (all_seen / move_to(types, exact).double()).log1p()
        gains = (seen / (of_row * p[of_token])).log1p()
        # H(p(y | h)): first as if nothing had been seen, then the change by each token that was seen.
        unseen, entropy = p[of_token] * (-lacks[rows]).exp(), torch.special.entr
        of_row = (-lacks).exp() * (entropy(p).sum() + lacks)
        of_row = of_row.index_add(0, rows, entropy(unseen * gains.exp()) - entropy(unseen))
        information = move_to((entropy(p).sum() - of_row).to(dtype), there)
        less, score = move_to((lacks.to(dtype), gains.to(dtype)), there)
        many = length > _SHARE * V
        which, length = many.cumsum(0) * many, length * ~many
        in_full = many[row]
        full = torch.zeros(1 + int(many.sum()), V, dtype=dtype, device=tokens.device)
        full[which[row[in_full]], token[in_full]] = score[in_full]
        full -= torch.cat([less.new_ones(1), less[many]])[:, None]
        order = torch.where(in_full, len(none), row).argsort()[: int((~in_full).sum())]
        longest = int(length.max())
        token, score = (F.pad(each[order], (0, longest)).unfold(0, longest, 1) for each in (token.int(), score))
        scale = torch.where(many, 1, less)
        first = length.cumsum(0) - length
        unit = move_to((1 / p).to(dtype), there)
        return cls(full, which, scale, token, score, first, length, types.to(dtype), less, information, unit)

    def seen(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of the sparse rows `row` [N], int64 [N, K], and their `score` [N, K], padded with 0."""
        first, positions = self.first[row], torch.arange(self.token.shape[1], device=row.device)
        return self.token[first].long(), torch.where(positions < self.length[row, None], self.score[first], 0)

    def of_tokens(self, x: Tensor, row: Tensor, seen: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Return s(x | h), [N, 2R], of tokens x [N] in rows `row` [N, 2R]; `seen` is `self.seen(…)` of each offset."""
        own = [torch.where(token == x[:, None], score, 0).sum(1) for token, score in seen]
        return self.scale[row] * self.full[self.which[row], x[:, None]] + torch.stack(own, 1)

    def left_out(self, own: Tensor, row: Tensor, x: Tensor) -> Tensor:
        """Return the change [N, 2R] in s(x | h) = `own` if only c(h, x) drops by 1; `row` is [N, 2R], x [N, 1]."""
        less = self.less[row]
        return ((own + less).expm1() - self.unit[x] / self.types[row]).clamp(min=0).log1p() - less - own
