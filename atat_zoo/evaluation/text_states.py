"""What metrics of texts are while they are measured: `torchmetrics.Metric`s of n texts, with errors over the texts."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import nan, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, tensor
from torchmetrics import Metric as TorchMetric
from torchmetrics.functional.text import bleu_score
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from atat_zoo.evaluation.judges import JudgeModel
from atat_zoo.evaluation.mauve import mauve_of
from atat_zoo.evaluation.metric_states import SequenceSums
from atat_zoo.evaluation.overlap import Overlap
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.evaluation.results.naming import exponential
from atat_zoo.modeling.diffusion.statistics import ratio

Tokens = NDArray[np.int64]
JudgeOf = Callable[[Any], JudgeModel]

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"\w+")


def entropy(text: str, pieces: Sequence[Tokens]) -> tuple[float, float]:
    """Return the entropy of the token frequencies of a text, in nats, and 1, to be averaged over texts."""
    ids = np.concatenate([np.zeros(0, np.int64), *pieces])
    share = np.unique(ids, return_counts=True)[1] / max(1, len(ids))
    return float(-(share * np.log(share)).sum()), 1.0


def adjacent(text: str, pieces: Sequence[Tokens]) -> tuple[float, float]:
    """Return the sum of the cosines of the word counts of adjacent sentences, and the number of these pairs.

    A sentence ends at ., ! or ? before white space, or at the end of a line; one without a word is none.
    """
    counts = [Counter(_WORD.findall(sentence.casefold())) for sentence in _SENTENCE.split(text)]
    pairs = list(pairwise(filter(None, counts)))
    return sum(_cosine(one, other) for one, other in pairs), len(pairs)


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    product = sum(times * other[word] for word, times in one.items())
    return product / sqrt(sum(n * n for n in one.values()) * sum(n * n for n in other.values()))


def windows(pieces: Sequence[Tokens], n: int) -> Tokens:
    """Return every n-gram of tokens of a text in pieces, [m, n]; none spans two pieces."""
    cut = (np.lib.stride_tricks.sliding_window_view(piece, n) for piece in pieces if len(piece) >= n)
    return np.concatenate([np.zeros((0, n), np.int64), *cut])


def distinct(pieces: Sequence[Tokens], n: int) -> tuple[int, int]:
    """Return the number of distinct n-grams of a text, and that of all of them."""
    grams = windows(pieces, n)
    return len(np.unique(grams, axis=0)), len(grams)


class TextMean(SequenceSums):
    """Σ a / Σ b over texts, of what a score returns of each: (text, its tokens in pieces) → (a, b)."""

    def __init__(self, score: Callable[[str, Sequence[Tokens]], tuple[float, float]]) -> None:
        super().__init__()
        self.score = score

    @override
    def update(self, texts: Sequence[str], pieces: Sequence[Sequence[Tokens]], sequence: Tensor) -> None:
        found = [self.score(text, cut) for text, cut in zip(texts, pieces, strict=True)]
        self.add(sequence, tensor(found, dtype=torch.float64).view(-1, 2))

    @override
    def compute(self) -> MetricValue:
        value, error = ratio(*self.by_sequence().unbind(1))
        return MetricValue(value=value, stderr=error)


class JudgedNats(SequenceSums):
    """The exponential of a judge's nats per token of its own."""

    def __init__(self, judge: Any) -> None:
        super().__init__()
        self.judge = judge

    @override
    def update(self, texts: Sequence[str], sequence: Tensor, judge_of: JudgeOf) -> None:
        if texts:
            nats, counted = judge_of(self.judge).nats(texts)
            self.add(sequence, torch.stack([nats.double(), counted.double()], 1))
        else:
            self.add(sequence, torch.zeros(0, 2, dtype=torch.float64))

    @override
    def compute(self) -> MetricValue:
        nats, counted = self.by_sequence().unbind(1)
        per_token, error = ratio(nats, counted)
        value = exponential(per_token)
        numbers = {"nats_per_token": per_token, "nats_per_token_stderr": error, "tokens": float(counted.sum())}
        table = {name: [number] for name, number in numbers.items()}
        return MetricValue(value=value, stderr=value * error, table=table)


class Copied(SequenceSums):
    """The share of n-grams that occur in the training text."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    @override
    def update(self, overlap: Overlap, sequence: Tensor) -> None:
        counts = torch.from_numpy(np.stack([overlap.copied[self.n], overlap.windows[self.n]], 1))
        self.add(sequence, counts.double())

    @override
    def compute(self) -> MetricValue:
        value, error = ratio(*self.by_sequence().unbind(1))
        return MetricValue(value=value, stderr=error)


class LongestCopy(TorchMetric):
    """The number of tokens of the longest copied span."""

    full_state_update = False
    longest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("longest", default=tensor(0), dist_reduce_fx="max")

    @override
    def update(self, overlap: Overlap) -> None:
        self.longest = self.longest.clamp(min=overlap.longest)

    @override
    def compute(self) -> Tensor:
        return self.longest


class Distinct(TorchMetric):
    """The distinct n-grams over all of them; NaN where no text has one."""

    full_state_update = False
    grams: Any

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
    """BLEU of each of the first texts with the others of these as references, averaged. Keeps them as UTF-8."""

    full_state_update = False
    sequence: Any
    size: Any
    bytes: Any

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
        """Return the first texts by their numbers."""
        sequence, size, whole = (dim_zero_cat(state).cpu() for state in (self.sequence, self.size, self.bytes))
        texts = [part.numpy().tobytes().decode() for part in whole.split(size.tolist())]
        return [texts[i] for i in sequence.argsort().tolist()][: self.most]

    @override
    def compute(self) -> MetricValue:
        texts = self.texts()
        others = [texts[:i] + texts[i + 1 :] for i in range(len(texts))]
        found = [
            float(bleu_score([text], [rest], self.n)) if rest else nan for text, rest in zip(texts, others, strict=True)
        ]
        value, error = ratio(tensor(found, dtype=torch.float64), torch.ones(len(found)))
        return MetricValue(value=value, stderr=error)


class Mauve(TorchMetric):
    """MAUVE of the judge's features of the texts against those of the references."""

    full_state_update = False
    sequence: Any
    features: Any
    references: Any

    def __init__(self, judge: Any) -> None:
        super().__init__()
        self.judge = judge
        for name in ("sequence", "features", "references"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @override
    def update(self, texts: Sequence[str], references: Sequence[str], sequence: Tensor, judge_of: JudgeOf) -> None:
        judge = judge_of(self.judge)
        # Flat, so that a process without texts, which does not know their width, has a state alike.
        features = [judge.features(each).flatten() if texts else torch.zeros(0) for each in (texts, references)]
        for state, values in zip((self.features, self.references, self.sequence), (*features, sequence), strict=True):
            state.append(values.to(self.device))

    @override
    def compute(self) -> MetricValue:
        order = dim_zero_cat(self.sequence).argsort()
        flat = (dim_zero_cat(state) for state in (self.features, self.references))
        texts, references = (values.view(len(order), -1)[order].cpu() for values in flat)
        return MetricValue(value=mauve_of(texts, references))
