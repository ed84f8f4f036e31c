"""Evaluate a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch

from atat_zoo.data.build import build
from atat_zoo.data.manifest import load_counts
from atat_zoo.data.sequences import held_out, sequences
from atat_zoo.errors import UserError
from atat_zoo.evaluation.count_table import TableNats, measure_table
from atat_zoo.evaluation.measuring import Measurement, measure
from atat_zoo.evaluation.perplexity import Evaluation, method_of, summarise
from atat_zoo.experiment import conflicts
from atat_zoo.parsing import read
from atat_zoo.run import RunFolder
from atat_zoo.run.model_files import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from atat_zoo.data import Split
    from atat_zoo.experiment import EvaluationSpec
    from atat_zoo.model import Model
    from atat_zoo.objectives import Score


@attrs.frozen(kw_only=True, eq=False)
class Text:
    """Held-out text to evaluate a model on: n sequences of L tokens.

    Attributes:
        tokens: int64 [n, L].
        maskable: bool [n, L].
        data: folder of the shards that it was held out of; None for another corpus than the experiment's own.
        split: which held-out split; `all` for all text of a corpus.
        corpus: the source of the text; empty for the experiment's own.
    """

    tokens: Tensor
    maskable: Tensor
    data: Path | None
    split: str
    corpus: str = ""


def text_of(
    model: Model,
    run: str | Path,
    spec: EvaluationSpec,
    *,
    corpus: Any = None,
    corpus_name: str = "",
    all_of_corpus: bool = False,
) -> Text:
    """Return the text of an evaluation, after a check that the model's parts allow it.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder.
        spec: split and sequences.
        corpus: another corpus than the experiment's own, for a zero-shot evaluation.
        corpus_name: its name in the run folder.
        all_of_corpus: whether to use all of its text, its training split.
    """
    check_evaluation(model, run, spec)
    if corpus is None:
        tokens, maskable, data = held_out_text(model, run, spec.split, spec.sequences)
        return Text(tokens=tokens, maskable=maskable, data=data, split=spec.split)
    tokens, maskable = sequences(
        corpus,
        model.tokenizer,
        "train" if all_of_corpus else spec.split,
        length=model.context.length,
        special=model.experiment.data.special,
        rows=model.experiment.data.rows,
        limit=spec.sequences,
    )
    split = "all" if all_of_corpus else spec.split
    return Text(tokens=tokens, maskable=maskable, data=None, split=split, corpus=corpus_name)


def evaluate_run(
    model: Model,
    run: str | Path,
    spec: EvaluationSpec,
    *,
    seed: int,
    text: Text | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a model on held-out text, and save the result in the run folder.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder.
        spec: split, sequences, draws, batch size and bound.
        seed: seed of the masks; the same seed gives two models the same masks.
        text: of `text_of`; the held-out text of the experiment's own corpus if None.
        progress: called with the completed and the total number of sequences.
    """
    text = text or text_of(model, run, spec)
    counts = table = None
    if text.data is not None:
        counts = load_counts(text.data)
        table = table_beside(model, text.data, text.tokens, text.maskable, spec, seed=seed)
    measured = measure_model(model, text.tokens, text.maskable, spec, seed=seed, progress=progress)
    evaluation = summarise(
        measured,
        tokenizer=model.tokenizer,
        counts=counts,
        table=table,
        split=text.split,
        step=model.step,
        ema=model.experiment.train.ema > 0,
        draws=spec.draws,
        seed=seed,
        method=method_of(model.experiment, spec.bound),
        corpus=text.corpus,
    )
    evaluation.record(RunFolder(Path(run)))
    return evaluation


class HeldOutText(NamedTuple):
    """Held-out text, and the training text that it was held out of."""

    tokens: Tensor  # int64 [n, L]
    maskable: Tensor  # bool [n, L]
    data: Path  # folder of the shards


def held_out_text(model: Model, run: str | Path, split: Split, sequences: int) -> HeldOutText:
    """Return the held-out text of a run's own experiment.

    Raises:
        UserError: when the corpus differs from that of the training.
    """
    data = build(model.experiment)
    if (data / TOKENIZER).read_bytes() != read(RunFolder(Path(run)).model_at(model.step) / TOKENIZER):
        raise UserError(
            f"{data} was tokenized by another tokenizer than the model of {run}: the corpus has changed since; "
            "bring its old text back, or train again"
        )
    tokens, maskable = held_out(data, split, sequences)
    return HeldOutText(tokens, maskable, data)


def check_evaluation(model: Model, run: str | Path, spec: EvaluationSpec) -> None:
    """Check that a model's parts allow this evaluation, before anything is measured.

    Raises:
        UserError: with one sentence per conflict.
    """
    problems = conflicts(attrs.evolve(model.experiment, evaluation=spec))
    if problems:
        raise UserError("\n".join(f"{run}: {problem}" for problem in problems))


def measure_model(
    model: Model,
    tokens: Tensor,
    maskable: Tensor,
    spec: EvaluationSpec,
    *,
    seed: int,
    scores: Mapping[str, Score] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Measure a model on sequences, int64 and bool [n, L], with the draws, batch size and bound of a specification."""
    return measure(
        model.module,
        tokens,
        maskable,
        torch.arange(len(tokens)),
        seed=seed,
        draws=spec.draws,
        batch_size=spec.batch_size,
        bound=spec.bound,
        scores=scores,
        progress=progress,
    )


def table_beside(
    model: Model,
    data: Path,
    tokens: Tensor,
    maskable: Tensor,
    spec: EvaluationSpec,
    *,
    seed: int,
    rows: Tensor | None = None,
) -> TableNats | None:
    """Measure the count table of the shards `data` where `measure_model` measures a model; `rows` as in `measure`."""
    return measure_table(
        data,
        model.module,
        tokens,
        maskable,
        exact=model.experiment.parts["objective"].exact,
        seed=seed,
        draws=spec.draws,
        batch_size=spec.batch_size,
        bound=spec.bound,
        rows=rows,
    )
