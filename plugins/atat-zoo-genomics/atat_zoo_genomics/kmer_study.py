"""Study that compares masked diffusion with k-mer models on GUE's core promoters."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo_genomics.gue import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from atat_zoo.generation.model import Model

TASK = "prom_core_all"
LONGEST = 8  # k of the largest k-mer model
BASELINE = 6  # k of the k-mer model that every model is compared with


class Arm(NamedTuple):
    """Arm of the study: experiments/promoters.toml with changes to some keys."""

    title: str
    changes: tuple[str, ...] = ()


ARMS: dict[str, Arm] = {
    "plain": Arm("gated convolutions"),
    "bell": Arm(
        "gated convolutions, logit-normal mask rates and simple weights",
        ("mask_rates.use=logit_normal", "objective.weight=simple"),
    ),
    "both": Arm("gated convolutions, reverse-complement equivariant", ("backbone.reverse_complement=true",)),
    "kmer": Arm("gated convolutions, k-mer importance", ("estimator.use=kmer", "masking.use=reveal")),
    "runs": Arm("gated convolutions, masks of whole 6-mers", ("mask_drawing.use=kmer",)),
}


class Figure(NamedTuple):
    """NLL of a model in nats per base on held-out sequences, and its difference from the NLL of the 6-mer model."""

    title: str
    quantity: str  # an exact likelihood, or a bound
    nats: float
    difference: float  # of paired sequences
    error: float  # standard error of the difference, over sequences


def study(data: Path, out: Path, names: Sequence[str], *, reporter: Any = None) -> list[Figure]:
    """Train the named arms that have not been trained, and return a `Figure` for each of them and each baseline.

    All are evaluated on the same held-out sequences. `data` has the task's files (see `gue.find`), and `out` the runs.
    """
    from atat_zoo.diffusion.statistics import ratio
    from atat_zoo.evaluation.held_out_text import text_of
    from atat_zoo.evaluation.likelihood import measure
    from atat_zoo.evaluation.ngram_likelihood import measure_ngram_prior

    found: list[tuple[str, str, Tensor]] = []
    for name in names:
        model = trained(name, data, out / name, reporter)
        spec = model.experiment.evaluation
        text = text_of(model, out / name, spec)
        if not found:
            title, count = f"{BASELINE}-mers", text.counted.sum(1)
            for k, nats in enumerate(counted(model, text.tokens, text.maskable), 1):
                found.append((f"{k}-mers", "likelihood", nats))
            assert text.data is not None
            table = measure_ngram_prior(model.module, text.data, text.tokens, text.maskable, spec, exact=False, seed=0)
            if table is not None:
                found.append(("n-gram model of both neighbours", "bound", table.nats))
        measured = measure(model.module, text.tokens, text.maskable, spec, seed=0)
        found.append((ARMS[name].title, "bound", next(iter(measured.contribution.values())).sum(1)))
    baseline = next(nats for label, _, nats in found if label == title)
    return [
        Figure(label, quantity, ratio(nats, count)[0], *ratio(nats - baseline, count))
        for label, quantity, nats in found
    ]


def trained(name: str, data: Path, folder: Path, reporter: Any = None) -> Model:
    """Return the trained model of an arm; if `folder` has none, first train it or resume its interrupted training."""
    from atat_zoo import training
    from atat_zoo.experiment import load
    from atat_zoo.experiment.runs import RunFolder
    from atat_zoo.experiment.runs.model_files import DESCRIPTION
    from atat_zoo.generation.model import Model

    run = RunFolder(folder)
    if (run.model / DESCRIPTION).is_file():
        return Model.from_run(folder)
    if run.exists:
        training.resume(folder, reporter=reporter)
        return Model.from_run(folder)
    splits = {"train": "train", "validation": "dev", "test": "test"}
    files = [f"corpus.{key}={json.dumps([str(find(TASK, data, split))])}" for key, split in splits.items()]
    with resources.as_file(resources.files("atat_zoo_genomics") / "experiments" / "promoters.toml") as path:
        experiment = load(str(path), [*files, *ARMS[name].changes])
    training.train(experiment, folder, reporter=reporter)
    return Model.from_run(folder)


def counted(model: Model, tokens: Tensor, maskable: Tensor) -> Iterator[Tensor]:
    """Yield, for k = 1 … 8, the NLL in nats of each sequence, float64 [n], under a k-mer model of the training text."""
    import torch

    from atat_zoo.data.sequences import corpus_sequences
    from atat_zoo_genomics.kmer_likelihood import kmer_nats

    data = model.experiment.data
    corpus = model.experiment.parts["corpus"]
    settings: Any = {"length": data.length, "special": data.special_tokens, "rows": data.packing, "limit": 0}
    seen, real, _ = corpus_sequences(corpus, model.tokenizer, "train", **settings)
    V = model.context.vocabulary_size
    train, text = (torch.where(kept, ids, V).numpy() for ids, kept in ((seen, real), (tokens, maskable)))
    for nats in kmer_nats(train, text, V, LONGEST):
        yield torch.from_numpy(nats).sum(1)


def page(figures: Sequence[Figure]) -> str:
    """Return the Markdown page STUDY.md, which explains the results and ends with their table."""
    return f"""# Masked diffusion against k-mer models

Written by `python -m atat_zoo_genomics study DATA --write STUDY.md`, on the core promoters of GUE
(`{TASK}`, [arXiv:2306.15006](https://arxiv.org/abs/2306.15006)): 70 bases each, evaluated on the test split.

A k-mer model predicts a base from the k − 1 bases before it, with counts of the training split (interpolated
Witten–Bell), and has an exact likelihood. For the other models, the table has a bound (≤) from the same four masks per
sequence, each with a uniformly drawn number of masked bases. Differences are paired by sequence, with 95 % CIs over
sequences; each network was trained once, so the CIs do not include the variation between seeds.

{table(figures)}
"""


def table(figures: Sequence[Figure]) -> str:
    """Return a Markdown table with a row for each model: its NLL and its difference from the 6-mer model's."""
    lines = [f"| model | nats per base | against {BASELINE}-mers |", "| --- | --- | --- |"]
    for figure in figures:
        low, high = (figure.difference + by * 1.96 * figure.error for by in (-1, 1))
        difference = f"{figure.difference:+.4f} [{low:+.4f}, {high:+.4f}]" if figure.error else ""
        sign = "≤ " if figure.quantity == "bound" else ""
        lines.append(f"| {figure.title} | {sign}{figure.nats:.4f} | {difference} |")
    return "\n".join(lines)
