"""The check of a metric, and the toy predictions, texts and judge model that it uses."""

import copy
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric as TorchMetric

from atat_zoo.evaluation.judges import JudgeModel
from atat_zoo.evaluation.metric_states import Metrics
from atat_zoo.evaluation.metrics import Metric, built
from atat_zoo.evaluation.overlap import Copies
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.system.machine import lacking
from atat_zoo.testing.batches import close

Piece = dict[str, Any]  # arguments of `Metric.build().update` for some rows


def check_metric(metric: Any) -> None:
    """Check the contract of a metric: the same value however the data is split into updates and ranks, in any order."""
    assert Metric in metric.__class__.__mro__, "a metric must inherit from atat_zoo.evaluation.metrics.Metric"
    assert isinstance(metric.title, str), "a title must be a str"
    assert metric.title, "a metric must have a title"
    assert metric.reads in ("predictions", "texts"), f"reads must be 'predictions' or 'texts', not {metric.reads!r}"
    if missing := lacking([metric]):
        raise unittest.SkipTest(missing[0])
    assert isinstance(metric.build(), TorchMetric), "build() must return a torchmetrics.Metric"
    pieces_of = example(metric)
    whole_piece = pieces_of(torch.arange(60))
    before = copy.deepcopy(whole_piece)
    whole = _found(shown(metric, [whole_piece]))
    for name, value in whole_piece.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, before[name]), f"update() must not change its argument {name}"
        elif isinstance(value, list):
            assert str(value) == str(before[name]), f"update() must not change its argument {name}"
    assert torch.isfinite(torch.tensor(whole.value)), f"the value must be finite, not {whole.value}"
    assert whole.stderr is None or whole.stderr >= 0, f"a standard error must not be negative: {whole.stderr}"
    pieces = [pieces_of(rows) for rows in torch.arange(60).split(17)]
    _same(_found(shown(metric, pieces[::-1])), whole, "a different order of updates must give the same value")
    nothing = pieces_of(torch.arange(0))
    one, *others = (shown(metric, some) for some in (pieces[::2], pieces[1::2], [nothing]))
    for other in others:
        one.built[metric.title].merge_state(other.built[metric.title])
    _same(_found(one), whole, "several ranks, one of them without data, must give the same value as a single rank")


def shown(metric: Metric, pieces: Sequence[Piece]) -> Metrics:
    """Return the `Metrics` of one metric after an update with each piece."""
    metrics = Metrics(built([metric]), "cpu")
    for piece in pieces:
        metrics.show(**piece)
    return metrics


def example(metric: Metric) -> Callable[[Tensor], Piece]:
    """Return a function from indices of examples, int64 [N] below 60, to the arguments of an update."""
    return predictions() if metric.reads == "predictions" else written(metric.ngrams)


def predictions() -> Callable[[Tensor], Piece]:
    """Return a function that selects from 60 predictions over 5 tokens in 7 sequences by index."""
    generator = torch.Generator().manual_seed(0)
    every = {
        "log_probs": (2 * torch.randn(60, 5, generator=generator)).log_softmax(1),
        "tokens": torch.randint(0, 5, (60,), generator=generator),
        "weight": torch.rand(60, dtype=torch.float64, generator=generator) + 0.1,
        "row": torch.randint(0, 7, (60,), generator=generator),
    }
    return lambda some: {name: tensor[some] for name, tensor in every.items()} | {"sequence": torch.arange(7)}


def written(sizes: tuple[int, ...] | None = None) -> Callable[[Tensor], Piece]:
    """Return a function that selects from 60 texts by index, and adds their n-gram overlap with 60 other texts.

    Each byte is a token, and each sentence is a piece.
    """
    generator = np.random.default_rng(0)
    words = ["peace", "war", "the", "people", "of", "nation", "is", "free", "Étoile"]

    def text() -> str:
        sentences = [" ".join(generator.choice(words, generator.integers(1, 9))) for _ in range(5)]
        return ". ".join(sentences) + "."

    texts, references = [text() for _ in range(60)], [text() for _ in range(60)]
    cut, seen = [_pieces(each) for each in texts], [_pieces(each) for each in references]

    def some(rows: Tensor) -> Piece:
        chosen = rows.tolist()
        copies = Copies([cut[i] for i in chosen], sizes or ())
        for piece in (piece for each in seen for piece in each):
            copies.see(piece)
        return {
            "texts": [texts[i] for i in chosen],
            "references": [references[i] for i in chosen],
            "pieces": [cut[i] for i in chosen],
            "sequence": rows,
            "overlap": copies.result(),
            "judge_of": lambda judge: ToyJudge(),
        }

    return some


def _pieces(text: str) -> list[Any]:
    return [np.frombuffer(sentence.encode(), np.uint8).astype(np.int64) for sentence in text.split(".") if sentence]


class ToyJudge(JudgeModel):
    """A judge model with an NLL of 1 nat per e and 2 nats per other character; the features are shares of vowels."""

    title = "toy"

    def nats(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the NLL and the number of characters of each text; see `JudgeModel`."""
        sizes = torch.tensor([len(text) for text in texts])
        return 2.0 * sizes.double() - torch.tensor([text.count("e") for text in texts]), sizes

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return the share of each vowel in each text; see `JudgeModel`."""
        return torch.tensor([[text.count(vowel) / len(text) for vowel in "aeiou"] for text in texts])


def _found(metrics: Metrics) -> MetricValue:
    (value,) = metrics.values().values()
    return value


def _same(found: MetricValue, expected: MetricValue, promise: str) -> None:
    for one, other in ((found.value, expected.value), (found.stderr, expected.stderr)):
        if other is not None:
            assert one is not None, promise
            close(torch.tensor(one), torch.tensor(other), 1e-6, promise)
