"""Generation of texts, and the values of metrics on generated texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import attrs
import torch
from torch import Tensor

from atat_zoo.data.build import build
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.evaluation.held_out_text import special_ids
from atat_zoo.evaluation.judges import JudgeModel
from atat_zoo.evaluation.metrics import Metric, built, reading
from atat_zoo.evaluation.overlap import Overlap, Tokens, overlap, pieces
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model


@attrs.frozen(kw_only=True, eq=False)
class ScoredTexts:
    """n texts with the arguments that metrics read; see `Metric.build`."""

    texts: Sequence[str]
    pieces: Sequence[Sequence[Tokens]]
    references: Sequence[str] = ()
    sequence: Tensor = attrs.field()  # int64 [n]
    overlap: Overlap | None = None

    @sequence.default
    def _in_order(self) -> Tensor:
        return torch.arange(len(self.texts))


def pieces_of(tokenizer: TokenizerModel, texts: Iterable[Tensor]) -> list[list[Tokens]]:
    """Return the tokens of each text, split at special tokens into arrays int64 [L]."""
    special = special_ids(tokenizer)
    return [pieces(tokens.cpu().numpy(), special) for tokens in texts]


class Judges:
    """The judge models of metrics on a torch device, each of which is built only once."""

    def __init__(self, device: str = "cpu", known: Iterable[tuple[Any, JudgeModel]] = ()) -> None:
        self.device = device
        self.built: list[tuple[Any, JudgeModel]] = [(judge, Remembering(model)) for judge, model in known]

    def __call__(self, judge: Any) -> JudgeModel:
        """Return the judge model of a judge component, which is built on first use."""
        for known, model in self.built:
            if known == judge:
                return model
        self.built.append((judge, Remembering(judge.build(self.device))))
        return self.built[-1][1]


class Remembering:
    """A judge model that caches the features of the two most recently used sets of texts, such as the references."""

    def __init__(self, judge: JudgeModel) -> None:
        self.title, self.nats = judge.title, judge.nats
        self._features = lru_cache(2)(lambda texts: judge.features(texts))

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return the feature vector of each text; see `JudgeModel`."""
        return self._features(tuple(texts))


def values_of(
    metrics: Sequence[Metric],
    texts: ScoredTexts,
    judge_of: Callable[[Any], JudgeModel] | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, MetricValue]:
    """Return each metric's value on texts by title, over the process group, all of whose processes must call this."""
    # Importing torchmetrics takes seconds.
    from atat_zoo.evaluation.metric_states import Metrics

    found = Metrics(built(metrics), device)
    found.show(**attrs.asdict(texts, recurse=False), judge_of=judge_of or Judges(str(device)))
    return found.values()


def sizes_of(metrics: Iterable[Metric]) -> tuple[int, ...] | None:
    """Return the n of the n-grams that metrics look up in the training text, or None if no metric reads it."""
    wanted = [metric.ngrams for metric in metrics if metric.ngrams is not None]
    return tuple(sorted({n for sizes in wanted for n in sizes})) if wanted else None


def measure_texts(
    model: Model,
    tokens: Tensor,
    maskable: Tensor,
    spec: EvaluationSpec,
    *,
    seed: int,
    judges: Judges | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> dict[str, MetricValue]:
    """Generate texts with the run's sampler, and return the values of those metrics in `spec` that read texts.

    The number of texts is `spec.texts`, but at most the number n of references, which are the held-out sequences
    `tokens`, int64 [n, L], and `maskable`, bool [n, L]. Text i is a function of (seed, i); in a process group of
    `ranks`, each process generates its share.
    """
    metrics = reading(spec.metrics, "texts")
    if not metrics:
        return {}
    rows = torch.arange(min(spec.texts, len(tokens)))[rank::ranks]
    training = model.module.training
    model.module.eval()
    try:
        written = model.sample(len(rows), rows=rows, seed=seed, batch_size=spec.batch_size, windows=True)
    finally:
        model.module.train(training)
    cut, sizes = pieces_of(model.tokenizer, written.sample.tokens), sizes_of(metrics)
    held_out = zip(tokens[rows], maskable[rows], strict=True)
    texts = ScoredTexts(
        texts=written.texts,
        pieces=cut,
        references=[model.tokenizer.decode(row[of_text].tolist()) for row, of_text in held_out],
        sequence=rows,
        overlap=None if sizes is None else overlap([cut], build(model.experiment), sizes=sizes)[0],
    )
    return values_of(metrics, texts, judges or Judges(model.placement), model.context.device)
