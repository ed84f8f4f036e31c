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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.diffusion.ngram_scores import NGramScores


def neighbours_of(tokens: Tensor, reach: int, absent: int) -> Tensor:
    """Return the tokens [B, L, 2R] at offsets −1, 1, −2, 2 … ±R from every position, and `absent` beyond the ends."""
    length = tokens.shape[1]
    padded = F.pad(tokens, (reach, reach), value=absent)
    offsets = [by for distance in range(1, reach + 1) for by in (-distance, distance)]
    return torch.stack([padded[:, reach + by : reach + by + length] for by in offsets], dim=2)


class NGramPriorModule(nn.Module):
    """A module that adds the scores of the visible neighbours to logits [N, V].

    The counts are buffers `apart_1`, … `apart_R`, int32 [M, 3]: a token, the token that many positions later, and the
    count of the pair. They are saved with the weights; in a module built without `table`, they are empty until loaded.
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
        self._scores: NGramScores | None = None
        before_loading: Any = self.register_load_state_dict_pre_hook  # torch gives it no types
        before_loading(_resize)

    def forward(self, logits: Tensor, neighbours: Tensor, x: Tensor | None = None) -> Tensor:
        """Return the logits of the head with the scores added, float32 [N, V].

        `neighbours` are the tokens at offsets −1, 1, −2, 2, … ±R, int64 [N, 2R], V where not visible. `x` are the true
        tokens, int64 [N], whose own occurrence is subtracted (when training), or None (for held-out text).
        """
        scores = self.scores()
        row = self._rows(neighbours)
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
        """Return the logits that `forward` returns with `x`, computed from those that it returned without `x`."""
        row = self._rows(neighbours)
        return self._without(x, logits.clone(), row, [self.scores().seen(of_place) for of_place in row.unbind(1)])

    def _without(self, x: Tensor, logits: Tensor, row: Tensor, seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        scores = self.scores()
        change = (self.gain * scores.left_out(scores.of_tokens(x, row, seen), row, x[:, None])).sum(1)
        return logits.scatter_add_(1, x[:, None], change[:, None])

    def token_scores(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Return −log p(x) of tokens x [N] and their scores s(x | h) for each neighbour, in nats, [N, 1 + 2R].

        All values are 0 for an id outside the vocabulary, such as the mask id. During training, the occurrence of x
        itself is subtracted from the counts of pairs.
        """
        known, scores = x < self.vocabulary_size, self.scores()
        x = x.where(known, 0)
        row = self._rows(neighbours)
        of_pairs = scores.of_tokens(x, row, map(scores.seen, row.unbind(1)))  # one offset at a time
        if self.training:
            of_pairs = of_pairs + scores.left_out(of_pairs, row, x[:, None])
        return torch.cat([scores.unit[x].log()[:, None], of_pairs], 1) * known[:, None]

    def information(self, neighbours: Tensor) -> Tensor:
        """Return how much each neighbour narrows the prediction down by itself, in nats, [..., 2R]; 0 if not visible.

        This is H(p(y)) − H(p(y | h)), with the entropies of the unigram distribution and of the estimate above; it is
        negative if the tokens at that distance from h are spread more evenly than all tokens.
        """
        return self.scores().information[self._rows(neighbours)]

    def _rows(self, neighbours: Tensor) -> Tensor:
        """Return the rows of `NGramScores` for the neighbours, int64 [..., 2R]."""
        offsets = torch.arange(2 * self.reach, device=neighbours.device)
        return neighbours + (self.vocabulary_size + 1) * offsets

    def scores(self) -> NGramScores:
        """Return the scores of all offsets, computed from the counts on first use and on a new device or dtype."""
        scores, dtype = self._scores, self.gain.dtype
        if scores is None or scores.full.device != self.tokens.device or scores.full.dtype != dtype:
            apart = [self.get_buffer(f"apart_{distance}") for distance in range(1, self.reach + 1)]
            scores = self._scores = NGramScores.of(apart, self.tokens, dtype)
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
