"""The `torchmetrics.Metric` classes of the metrics; most keep sums per sequence or text to compute standard errors.

Sizes: N predictions, V predictable tokens, B rows in a batch, n sequences or texts, b bins.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import nan, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, tensor
from torchmetrics import MaxMetric, MetricCollection
from torchmetrics import Metric as TorchMetric
from torchmetrics.functional.text import bleu_score
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation.judges import JudgeModel
from atat_zoo.evaluation.mauve import mauve_of
from atat_zoo.evaluation.overlap import Overlap, Tokens
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.evaluation.results.quantity_names import exponential
from atat_zoo.modeling.objectives import Observer

JudgeOf = Callable[[Any], JudgeModel]

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"\w+")


def brier(log_probs: Tensor, x: Tensor) -> Tensor:
    """Return the Brier score Σ_v (p_v − 1[v = x])² of each prediction of a true token x, float [N]."""
    p = log_probs.exp()
    return p.square().sum(-1) - 2 * p.gather(-1, x[:, None])[:, 0] + 1


def among_top(log_probs: Tensor, x: Tensor, *, k: int) -> Tensor:
    """Return 1 for each prediction whose k most probable tokens include the true token, otherwise 0, float64 [N]."""
    return (log_probs.topk(min(k, log_probs.shape[1])).indices == x[:, None]).any(1).double()


class Metrics:
    """The metrics of an evaluation by title; see `metrics.built`."""

    def __init__(self, built: Mapping[str, TorchMetric], device: torch.device | str) -> None:
        self.device = device
        self.built = {title: metric.to(device) for title, metric in built.items()}
        # The collection passes each metric the arguments that its `update` names.
        self.together = MetricCollection(dict(self.built), compute_groups=False)

    def observer(self, sequence: Tensor, counted: Tensor) -> Observer:
        """Return a function that updates the metrics with the predictions of a batch.

        `sequence`, int64 [B], holds the index of each row's sequence. Predictions of tokens that are not `counted`,
        bool [B, L], have weight 0.
        """
        sequence, counted = sequence.to(self.device), counted.to(self.device)

        def observe(*, weight: Tensor, row: Tensor, position: Tensor | None = None, **of_tokens: Tensor) -> None:
            weight = weight if position is None else weight * counted[row, position]
            self.show(weight=weight, row=row, sequence=sequence, **of_tokens)

        return observe

    def show(self, **what: Any) -> None:
        """Update each metric with those arguments that its `update` names; see `Metric.build`."""
        self.together.update(**what)

    def show_nothing(self, vocabulary_size: int) -> None:
        """Update the metrics with zero predictions, so that a process without sequences also has states to gather."""
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        nothing = torch.zeros(0, vocabulary_size, device=self.device)
        self.show(log_probs=nothing, tokens=none, weight=none.double(), row=none, sequence=none)

    def values(self) -> dict[str, MetricValue]:
        """Return the values of the metrics over the process group, all of whose processes must call this method."""
        found = ((title, metric.compute()) for title, metric in self.built.items())
        return {title: v if isinstance(v, MetricValue) else MetricValue(value=float(v)) for title, v in found}


class SequenceSums(TorchMetric):
    """Sums of C values for each sequence or text, float64 [n, C]."""

    full_state_update = False
    sequence: list[Tensor]
    sums: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sequence", default=[], dist_reduce_fx="cat")
        self.add_state("sums", default=[], dist_reduce_fx="cat")

    def add(self, sequence: Tensor, values: Tensor, row: Tensor | None = None) -> None:
        """Add `values`, [N, C], to the sums of the sequences `sequence[row]`; `row` is int64 [N] (default: 0 … N−1)."""
        if row is None:
            self.sequence.append(sequence.to(self.device))
            self.sums.append(values.to(self.device))
            return
        # The pieces of a batch belong to the same sequences, so they are summed in place without waiting for a GPU to
        # tell which sequences these are.
        if not (self.sequence and self.sequence[-1] is sequence):
            self.sequence.append(sequence)
            self.sums.append(values.new_zeros(len(sequence), values.shape[1]))
        self.sums[-1].index_add_(0, row, values)

    def by_sequence(self) -> Tensor:
        """Return the sums of each sequence, float64 [n, C], ordered by sequence."""
        sequence, sums = dim_zero_cat(self.sequence), dim_zero_cat(self.sums)
        each, inverse = sequence.unique(return_inverse=True)
        return sums.new_zeros(len(each), sums.shape[1]).index_add_(0, inverse, sums)

    @override
    def compute(self) -> MetricValue:
        """Return the ratio Σ a / Σ b of the two columns, with its standard error over sequences."""
        value, error = ratio(*self.by_sequence().unbind(1))
        return MetricValue(value=value, stderr=error)


class SequenceMean(SequenceSums):
    """The weighted mean over predictions of `score`, which maps log-probabilities [N, V] and tokens [N] to [N]."""

    def __init__(self, score: Callable[..., Tensor], **parameters: Any) -> None:
        super().__init__()
        self.score = partial(score, **parameters)

    @override
    def update(self, log_probs: Tensor, tokens: Tensor, weight: Tensor, row: Tensor, sequence: Tensor) -> None:
        score = self.score(log_probs, tokens).double()
        self.add(sequence, torch.stack([weight * score, weight], 1), row)


class Calibration(SequenceSums):
    """Expected calibration error, from the sums of weight, confidence and hits per sequence and bin of confidence."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    @override
    def update(self, log_probs: Tensor, tokens: Tensor, weight: Tensor, row: Tensor, sequence: Tensor) -> None:
        best, guess = log_probs.double().max(1)
        confidence = best.exp()
        # (0, 1/b], (1/b, 2/b], … as in the literature.
        bin_ = ((confidence * self.bins).ceil().long() - 1).clamp(0, self.bins - 1)
        values = torch.stack([weight, weight * confidence, weight * (guess == tokens)], 1)  # [N, 3]
        every = values.new_zeros(len(values), self.bins, 3)
        every[torch.arange(len(values), device=values.device), bin_] = values
        self.add(sequence, every.flatten(1), row)

    @override
    def compute(self) -> MetricValue:
        each = self.by_sequence().view(-1, self.bins, 3)
        weight, confidence, hits = each.sum(0).unbind(1)
        # With the sign of a bin's total gap, the gaps of the sequences add up to the absolute value of this total.
        gaps = ((confidence - hits).sign() * (each[..., 1] - each[..., 2])).sum(1)
        value, error = ratio(gaps, each[..., 0].sum(1))
        columns = {"confidence": confidence / weight, "accuracy": hits / weight, "share": weight / weight.sum()}
        table = {name: column[weight > 0].tolist() for name, column in columns.items()}
        return MetricValue(value=value, stderr=error, table=table)


def entropy(text: str, pieces: Sequence[Tokens]) -> tuple[float, float]:
    """Return the entropy of a text's token frequencies in nats, and the weight 1."""
    ids = np.concatenate([np.zeros(0, np.int64), *pieces])
    share = np.unique(ids, return_counts=True)[1] / max(1, len(ids))
    return float(-(share * np.log(share)).sum()), 1.0


def adjacent(text: str, pieces: Sequence[Tokens]) -> tuple[float, float]:
    """Return the sum of cosine similarities between the word counts of adjacent sentences, and the number of pairs.

    A sentence ends at ., ! or ? before white space, or at the end of a line, and has at least one word.
    """
    counts = [Counter(_WORD.findall(sentence.casefold())) for sentence in _SENTENCE.split(text)]
    pairs = list(pairwise(filter(None, counts)))
    return sum(_cosine(one, other) for one, other in pairs), len(pairs)


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    product = sum(times * other[word] for word, times in one.items())
    return product / sqrt(sum(n * n for n in one.values()) * sum(n * n for n in other.values()))


def windows(pieces: Sequence[Tokens], n: int) -> Tokens:
    """Return the m token n-grams of a text, [m, n]; an n-gram never spans two pieces of the text."""
    cut = (np.lib.stride_tricks.sliding_window_view(piece, n) for piece in pieces if len(piece) >= n)
    return np.concatenate([np.zeros((0, n), np.int64), *cut])


def distinct(pieces: Sequence[Tokens], n: int) -> tuple[int, int]:
    """Return the number of distinct n-grams in a text, and the total number of its n-grams."""
    grams = windows(pieces, n)
    return len(np.unique(grams, axis=0)), len(grams)


class TextMean(SequenceSums):
    """The ratio Σ a / Σ b over texts, where `score` maps each text and its token pieces to (a, b)."""

    def __init__(self, score: Callable[[str, Sequence[Tokens]], tuple[float, float]]) -> None:
        super().__init__()
        self.score = score

    @override
    def update(self, texts: Sequence[str], pieces: Sequence[Sequence[Tokens]], sequence: Tensor) -> None:
        found = [self.score(text, cut) for text, cut in zip(texts, pieces, strict=True)]
        self.add(sequence, tensor(found, dtype=torch.float64).view(-1, 2))


class JudgedNats(SequenceSums):
    """Generative perplexity: the exponential of the nats per token under a judge model, with the judge's tokenizer."""

    def __init__(self, judge: Any) -> None:
        super().__init__()
        self.judge = judge

    @override
    def update(self, texts: Sequence[str], sequence: Tensor, judge_of: JudgeOf) -> None:
        found = judge_of(self.judge).nats(texts) if texts else (torch.zeros(0), torch.zeros(0))
        self.add(sequence, torch.stack([each.double() for each in found], 1))

    @override
    def compute(self) -> MetricValue:
        nats, counted = self.by_sequence().unbind(1)
        per_token, error = ratio(nats, counted)
        value = exponential(per_token)
        table = {"nats_per_token": [per_token], "nats_per_token_stderr": [error], "tokens": [float(counted.sum())]}
        return MetricValue(value=value, stderr=value * error, table=table)


class Copied(SequenceSums):
    """The fraction of n-grams that occur in the training text."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    @override
    def update(self, overlap: Overlap, sequence: Tensor) -> None:
        counts = torch.from_numpy(np.stack([overlap.copied[self.n], overlap.windows[self.n]], 1))
        self.add(sequence, counts.double())


class LongestCopy(MaxMetric):
    """The number of tokens in the longest span that occurs in the training text."""

    full_state_update = False

    @override
    def update(self, overlap: Overlap) -> None:  # type: ignore[override]
        super().update(overlap.longest)


class Distinct(TorchMetric):
    """The ratio of distinct n-grams to all n-grams, pooled over texts; NaN if no text contains an n-gram."""

    full_state_update = False
    grams: list[Tensor]

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.add_state("grams", default=[], dist_reduce_fx="cat")

    @override
    def update(self, pieces: Sequence[Sequence[Tokens]]) -> None:
        grams = np.concatenate([np.zeros((0, self.n), np.int64), *(windows(text, self.n) for text in pieces)])
        self.grams.append(torch.from_numpy(grams).to(self.device))

    @override
    def compute(self) -> MetricValue:
        grams = dim_zero_cat(self.grams)
        return MetricValue(value=len(grams.unique(dim=0)) / len(grams) if len(grams) else nan)


class SelfBleu(TorchMetric):
    """The mean BLEU of the first `most` texts, each with the others as references. Texts are stored as UTF-8."""

    full_state_update = False
    sequence: list[Tensor]
    size: list[Tensor]
    bytes: list[Tensor]

    def __init__(self, n: int, most: int) -> None:
        super().__init__()
        self.n, self.most = n, most
        for name in ("sequence", "size", "bytes"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @override
    def update(self, texts: Sequence[str], sequence: Tensor) -> None:
        encoded = [text.encode() for text in texts]
        self.sequence.append(sequence.to(self.device))
        self.size.append(tensor([len(each) for each in encoded], dtype=torch.int64, device=self.device))
        self.bytes.append(tensor(list(b"".join(encoded)), dtype=torch.uint8, device=self.device))

    def texts(self) -> list[str]:
        """Return the first `most` texts in the order of their indices."""
        sequence, size, whole = (dim_zero_cat(state).cpu() for state in (self.sequence, self.size, self.bytes))
        texts = [part.numpy().tobytes().decode() for part in whole.split(size.tolist())]
        return [texts[i] for i in sequence.argsort().tolist()][: self.most]

    @override
    def compute(self) -> MetricValue:
        texts = self.texts()
        others = ((text, texts[:i] + texts[i + 1 :]) for i, text in enumerate(texts))
        found = [float(bleu_score([text], [rest], self.n)) if rest else nan for text, rest in others]
        value, error = ratio(tensor(found, dtype=torch.float64), torch.ones(len(found)))
        return MetricValue(value=value, stderr=error)


class Mauve(TorchMetric):
    """MAUVE between the features that the judge computes for the texts and for the references."""

    full_state_update = False
    sequence: list[Tensor]
    features: list[Tensor]
    references: list[Tensor]

    def __init__(self, judge: Any) -> None:
        super().__init__()
        self.judge = judge
        for name in ("sequence", "features", "references"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @override
    def update(self, texts: Sequence[str], references: Sequence[str], sequence: Tensor, judge_of: JudgeOf) -> None:
        judge = judge_of(self.judge)
        # Flattened, so that a process without texts, which does not know the width, has a compatible state.
        features = [judge.features(each).flatten() if texts else torch.zeros(0) for each in (texts, references)]
        for state, values in zip((self.features, self.references, self.sequence), (*features, sequence), strict=True):
            state.append(values.to(self.device))

    @override
    def compute(self) -> MetricValue:
        order = dim_zero_cat(self.sequence).argsort()
        flat = (dim_zero_cat(state) for state in (self.features, self.references))
        texts, references = (values.view(len(order), -1)[order].cpu() for values in flat)
        return MetricValue(value=mauve_of(texts, references))
