"""The n-gram prior as a module: adds scores from the visible neighbours to a network's logits.

A masked language model spends its first epochs learning which tokens are neighbours, and a head of width D represents
at most D directions of these statistics, whereas an n-gram prior takes one pass over the text. Let c(h, y) be the
number of times that y occurs at a given distance from the context h in the training text, N(h) = Σ_y c(h, y), T(h) the
number of different y, and p(y) the unigram distribution. The interpolated Witten–Bell estimate gives

    s(y | h) = log p(y | h) / p(y) = log (1 + c(h, y) / (T(h)·p(y))) − log (1 + N(h)/T(h))

and 0 where h is not visible or was never seen. The logits are those of the head plus Σ_h γ_h·s(y | h) over the visible
neighbours of the position, with learned γ. This is log-linear interpolation (Klakow, ICSLP 1998), in which the network
learns the residual (Li et al., arXiv:2210.14431, for n-grams to the left).

The counts include the training sequence itself. For the true y, c(h, y) is therefore reduced by one: leaving-one-out
(Ney, Essen & Kneser, IEEE PAMI 17, 1995). Otherwise the network would trust counts that are missing from held-out text.
T and N stay unchanged: N shifts all tokens alike, and T would change only where c = 1. A token between two copies of
itself occurs in two pairs; this rare case is ignored. Padding is read as token 0, as in the network.

Shapes: B sequences of L tokens, N predictions, V tokens, reach R, M unique pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.system.devices import exact_device, move_to

# A context with more different neighbours than this share of V is stored as a row of all V scores. Every other row is
# read padded to the longest: 1/8 would store half as much and take 1.5 % more of a training step at V = 2,048.
_SHARE = 1 / 16


def neighbours_of(tokens: Tensor, reach: int, absent: int) -> Tensor:
    """Return the tokens [B, L, 2R] at offsets −1, 1, −2, 2 … ±R from every position, and `absent` beyond the ends."""
    length = tokens.shape[1]
    padded = F.pad(tokens, (reach, reach), value=absent)
    offsets = [by for distance in range(1, reach + 1) for by in (-distance, distance)]
    return torch.stack([padded[:, reach + by : reach + by + length] for by in offsets], dim=2)


class NGramPriorModule(nn.Module):
    """A module that adds the scores of the visible neighbours to logits [N, V].

    The counts are buffers `apart_1`, … `apart_R`, int32 [M, 3]: a token, the token that many positions later, and the
    count of the pair. They are saved with the weights; without an n-gram prior they are empty until loaded.
    """

    def __init__(self, vocabulary_size: int, reach: int, table: NGramPrior | None) -> None:
        super().__init__()
        self.vocabulary_size, self.reach = vocabulary_size, reach
        # γ at offsets −1, 1, −2, 2 …: the adjacent neighbours start with their full score, which is close to optimal.
        self.gain = nn.Parameter(torch.cat([torch.ones(2), torch.full((2 * reach - 2,), 0.3)]))
        for distance in range(1, reach + 1):
            counts = torch.zeros(0, 3, dtype=torch.int32)
            if table is not None:
                keys, times = (torch.tensor(each) for each in table.pairs_at(distance))
                counts = torch.stack([keys // vocabulary_size, keys % vocabulary_size, times], 1).int()
            self.register_buffer(f"apart_{distance}", counts)
        counted = torch.zeros(vocabulary_size, dtype=torch.int64) if table is None else torch.tensor(table.tokens)
        self.register_buffer("tokens", counted)
        self.tokens: Tensor
        self._scores: _Scores | None = None
        before_loading: Any = self.register_load_state_dict_pre_hook  # torch gives it no types
        before_loading(_resize)

    def forward(self, logits: Tensor, neighbours: Tensor, x: Tensor | None = None) -> Tensor:
        """Return the logits of the head with the scores added, float32 [N, V].

        `neighbours` are the tokens at offsets −1, 1, −2, 2, … ±R, int64 [N, 2R], V where not visible. `x` are the true
        tokens, int64 [N], whose own occurrence is subtracted (when training), or None (for held-out text).
        """
        scores = self.scores()
        row = neighbours + (self.vocabulary_size + 1) * torch.arange(2 * self.reach, device=neighbours.device)
        which, scale = scores.which[row], scores.scale[row]
        # One pass over the rows of each offset: the sum of 2R copies [N, V] would take a fifth of a training step.
        bag = F.embedding_bag(which, scores.full, mode="sum", per_sample_weights=self.gain * scale)
        logits, seen = logits + bag, []
        for gain, of_place in zip(self.gain, row.unbind(1), strict=True):
            token, score = scores.seen(of_place)
            logits.scatter_add_(1, token, gain * score)
            if x is not None:  # autograd keeps them in any case
                seen.append((token, score))
        return logits if x is None else self._without(x, logits, row, seen)

    def without(self, x: Tensor, logits: Tensor, neighbours: Tensor) -> Tensor:
        """Return logits that this module returned without `x`, as they are with `x`."""
        row = neighbours + (self.vocabulary_size + 1) * torch.arange(2 * self.reach, device=neighbours.device)
        return self._without(x, logits.clone(), row, [self.scores().seen(of_place) for of_place in row.unbind(1)])

    def _without(self, x: Tensor, logits: Tensor, row: Tensor, seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        scores = self.scores()
        which, scale = scores.which[row], scores.scale[row]
        own = [torch.where(token == x[:, None], score, 0).sum(1) for token, score in seen]
        of_x = scale * scores.full[which, x[:, None]] + torch.stack(own, 1)
        change = (self.gain * scores.left_out(of_x, row, x[:, None])).sum(1)
        return logits.scatter_add_(1, x[:, None], change[:, None])

    def information(self, neighbours: Tensor) -> Tensor:
        """Return how much each neighbour narrows the prediction down by itself, in nats, [..., 2R]; 0 if not visible.

        This is H(p(y)) − H(p(y | h)), with the entropies of the unigram distribution and of the estimate above; it is
        negative if the tokens at that distance from h are spread more evenly than all tokens.
        """
        offsets = torch.arange(2 * self.reach, device=neighbours.device)
        return self.scores().information[neighbours + (self.vocabulary_size + 1) * offsets]

    def scores(self) -> _Scores:
        """Return the scores of all offsets, computed from the counts on first use."""
        scores, dtype = self._scores, self.gain.dtype
        if scores is None or scores.full.device != self.tokens.device or scores.full.dtype != dtype:
            apart = [self.get_buffer(f"apart_{distance}") for distance in range(1, self.reach + 1)]
            scores = self._scores = _Scores.of(apart, self.tokens, dtype)
        return scores


def ngram_prior_counts(model: nn.Module) -> dict[str, Tensor]:
    """Return the n-gram counts in a model, as a dict from their names in its state dict."""
    priors = {name: module for name, module in model.named_modules() if isinstance(module, NGramPriorModule)}
    return {f"{name}.{key}": counts for name, prior in priors.items() for key, counts in prior.named_buffers()}


def _resize(prior: NGramPriorModule, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
    """Resize the buffers before counts are loaded, since the number of pairs is unknown when the module is built."""
    errors: list[str] = rest[-1]
    for name, own in list(prior.named_buffers()):
        saved = state.get(prefix + name)
        if saved is None or saved.dtype != own.dtype or saved.shape[1:] != own.shape[1:]:
            continue  # torch reports this itself
        ids = saved[:, :2] if name != "tokens" else saved.new_zeros(0)
        if saved.numel() and (int(saved.min()) < 0 or (ids.numel() and int(ids.max()) >= prior.vocabulary_size)):
            errors.append(f"{prefix}{name} has negative counts, or token ids outside the vocabulary")
        elif name != "tokens":
            prior.register_buffer(name, torch.empty_like(saved, device=own.device))
    prior._scores = None


class _Scores(NamedTuple):
    """The scores s(y | h) for all neighbour offsets; row h of an offset is V when its neighbour is not visible.

    Most contexts have few different neighbours, and all other tokens share the score −log (1 + N(h)/T(h)). Memory
    therefore grows with the number of pairs, not with V². A row is dense (4·V bytes) only if it has many neighbours;
    other rows store 8 bytes per neighbour. Sparse rows are read padded to the longest, so a step never waits for the
    device.
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
    def of(cls, apart: Sequence[Tensor], tokens: Tensor, dtype: torch.dtype) -> _Scores:
        """Return the scores, computed from the counts [M, 3] of each distance and the counts of single tokens [V]."""
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
        """Return the tokens, int64 [N, K], of the sparse rows `row` [N], and their scores [N, K], padded with 0."""
        first, positions = self.first[row], torch.arange(self.token.shape[1], device=row.device)
        return self.token[first].long(), torch.where(positions < self.length[row, None], self.score[first], 0)

    def left_out(self, own: Tensor, row: Tensor, x: Tensor) -> Tensor:
        """Return the change [N, 2R] in s(x | h) = `own` when its count drops by 1; `row` is [N, 2R], x [N, 1]."""
        less = self.less[row]
        return ((own + less).expm1() - self.unit[x] / self.types[row]).clamp(min=0).log1p() - less - own
