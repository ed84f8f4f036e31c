"""Evaluate a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo.data.build import build
from atat_zoo.data.manifest import load_counts
from atat_zoo.data.sequences import held_out, sequences
from atat_zoo.errors import UserError
from atat_zoo.evaluation.measuring import Measurement, measure
from atat_zoo.evaluation.perplexity import Evaluation, method_of, summarise
from atat_zoo.experiment import conflicts
from atat_zoo.run import RunFolder
from atat_zoo.run.model_files import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray
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
        counts: training tokens by id, int64 [V]; None for another corpus than the experiment's own.
        split: which held-out split; `all` for all text of a corpus.
        corpus: the source of the text; empty for the experiment's own.
    """

    tokens: Tensor
    maskable: Tensor
    counts: NDArray[np.int64] | None
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
        tokens, maskable, counts = held_out_text(model, run, spec.split, spec.sequences)
        return Text(tokens=tokens, maskable=maskable, counts=counts, split=spec.split)
    tokens, maskable = sequences(
        corpus,
        model.tokenizer,
        "train" if all_of_corpus else spec.split,
        length=model.context.length,
        special=model.experiment.data.special,
        limit=spec.sequences,
    )
    split = "all" if all_of_corpus else spec.split
    return Text(tokens=tokens, maskable=maskable, counts=None, split=split, corpus=corpus_name)


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
    measured = measure_model(model, text.tokens, text.maskable, spec, seed=seed, progress=progress)
    evaluation = summarise(
        measured,
        tokenizer=model.tokenizer,
        counts=text.counts,
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


def held_out_text(
    model: Model, run: str | Path, split: Split, sequences: int
) -> tuple[Tensor, Tensor, NDArray[np.int64] | None]:
    """Return the held-out text of a run's own experiment: tokens and maskable [n, L], and training counts [V].

    Raises:
        UserError: when the corpus differs from that of the training.
    """
    data = build(model.experiment)
    if (data / TOKENIZER).read_bytes() != (RunFolder(Path(run)).model_at(model.step) / TOKENIZER).read_bytes():
        raise UserError(
            f"{data} was tokenized by another tokenizer than the model of {run}: the corpus has changed since; "
            "bring its old text back, or train again"
        )
    tokens, maskable = held_out(data, split, sequences)
    return tokens, maskable, load_counts(data)


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
