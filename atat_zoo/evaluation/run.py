"""Evaluate a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atat_zoo.data.build import build
from atat_zoo.data.loader import held_out
from atat_zoo.data.manifest import load_counts
from atat_zoo.errors import UserError
from atat_zoo.evaluation.perplexity import Evaluation, measure, summarise
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.experiment import EvaluationSpec
    from atat_zoo.model import Model


def evaluate_run(
    model: Model,
    run: str | Path,
    spec: EvaluationSpec,
    *,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a model on the held-out text of its own experiment, and record it in the run folder.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder.
        spec: split, sequences, draws and batch size.
        seed: of the masks; two models that are given the same seed see the same masks.
        progress: called with the sequences done and to do.
    """
    data = build(model.experiment)
    if (data / "tokenizer.json").read_bytes() != (RunFolder(Path(run)).model / "tokenizer.json").read_bytes():
        raise UserError(
            f"{data} was tokenized by another tokenizer than the model of {run}: the corpus has changed since; "
            "bring its old text back, or train again"
        )
    tokens, maskable = held_out(data, spec.split, spec.sequences)
    measured = measure(
        model.module,
        tokens,
        maskable,
        torch.arange(len(tokens)),
        seed=seed,
        draws=spec.draws,
        batch_size=spec.batch_size,
        progress=progress,
    )
    found = summarise(
        measured,
        tokenizer=model.tokenizer,
        counts=load_counts(data),
        split=spec.split,
        step=model.step,
        ema=model.experiment.train.ema > 0,
        draws=spec.draws,
        seed=seed,
    )
    found.record(RunFolder(Path(run)))
    return found
