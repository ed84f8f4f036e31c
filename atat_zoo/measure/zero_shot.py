"""The seven corpora of the field's zero-shot table, and what is published for them (arXiv:2406.07524, Table 3)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from atat_zoo.errors import UserError
from atat_zoo.experiment import EvaluationSpec, recipe
from atat_zoo.measure import Progress
from atat_zoo.measure.compare import alike, compare, measure_runs
from atat_zoo.measure.likelihood import evaluate_run
from atat_zoo.measure.text import check_evaluation, text_of
from atat_zoo.model import Model
from atat_zoo.results.format import number


class ZeroShot(NamedTuple):
    """A corpus of the table."""

    recipe: str  # in experiments/corpora
    title: str
    split: str  # as in an evaluation: a split, or `all`
    published: tuple[float, float, float]  # of the models in `PUBLISHED`, the same quantity


# An autoregressive model, exactly, and bounds of two diffusion models, all trained by the table's authors.
PUBLISHED = ("AR", "SEDD", "MDLM")
SETS = (
    ZeroShot("ptb", "PTB", "validation", (82.05, 100.09, 95.26)),
    ZeroShot("wikitext103", "WikiText", "validation", (25.75, 34.28, 32.83)),
    ZeroShot("lm1b", "LM1B", "validation", (51.25, 68.20, 67.01)),
    ZeroShot("lambada", "LAMBADA", "all", (51.28, 49.86, 47.52)),
    ZeroShot("ag_news", "AG News", "test", (52.09, 62.09, 61.15)),
    ZeroShot("pubmed", "PubMed", "validation", (49.01, 44.53, 41.89)),
    ZeroShot("arxiv", "arXiv", "validation", (41.73, 38.48, 37.37)),
)
# What those models were trained with; the tokens are 1,000,000 steps of 512 sequences.
LENGTH, VOCABULARY, TOKENS, PARAMETERS = 1024, 50_257, 524e9, 169e6


class OnCorpus(NamedTuple):
    """A corpus and what was found on it, of one run or of several."""

    of: ZeroShot
    found: Any  # an `Evaluation` or a `Comparison`; None if it cannot be evaluated
    problem: str  # why there is nothing, as a file that is not here


def _texts(spec: EvaluationSpec) -> Iterator[tuple[ZeroShot, EvaluationSpec, dict[str, Any]]]:
    """Yield each corpus, the evaluation of its split, and what it is for `text_of`."""
    for each in SETS:
        on: Any = spec
        if not (entire := each.split == "all"):
            on = attrs.evolve(on, split=each.split)
        yield each, on, {"corpus": recipe(each.recipe), "corpus_name": each.recipe, "all_of_corpus": entire}


def evaluate_all(
    model: Model, run: str | Path, spec: EvaluationSpec, *, seed: int, progress: Progress = None
) -> Iterator[OnCorpus]:
    """Evaluate a model on each corpus of the table that can be; each result is saved in the run folder."""
    check_evaluation(model, run, spec)
    for each, on, corpus in _texts(spec):
        try:
            text = text_of(model, run, on, **corpus)
        except UserError as error:
            yield OnCorpus(each, None, str(error))
            continue
        yield OnCorpus(each, evaluate_run(model, run, on, seed=seed, text=text, progress=progress), "")


def compare_all(
    runs: Sequence[Path], spec: EvaluationSpec, *, seed: int, baseline: int, step: int | None, **options: Any
) -> Iterator[OnCorpus]:
    """Compare runs on each corpus of the table that can be read; see `measure_runs`."""
    for _ in alike(runs, spec, baseline=baseline, step=step):
        pass  # one model in memory at a time
    for each, on, corpus in _texts(spec):
        try:
            measured = measure_runs(runs, on, seed=seed, baseline=baseline, step=step, **options, **corpus)
        except UserError as error:
            yield OnCorpus(each, None, str(error))
            continue
        del corpus["corpus"]
        yield OnCorpus(each, compare(measured, on, seed=seed, baseline=baseline, **corpus), "")


def differences(model: Model, spec: EvaluationSpec) -> list[str]:
    """Return what tells a model and its evaluation from those of the published figures."""
    made = model.experiment
    corpus, shown = made.parts["corpus"], made.train.steps * made.train.batch_size * made.data.length
    found = []
    if getattr(corpus, "train", None) != recipe("openwebtext").train:
        found.append(f"trained on other text than OpenWebText (corpus {corpus.name!r})")
    if not 0.9 < shown / TOKENS < 1.1:
        found.append(f"trained on {shown:.2g} tokens, repetitions included, not {TOKENS:.2g}")
    if model.context.length != LENGTH:
        found.append(f"sequences of {model.context.length} tokens, not {LENGTH}")
    if model.tokenizer.vocabulary_size != VOCABULARY:
        vocabulary = f"a vocabulary of {model.tokenizer.vocabulary_size:,} tokens, not {VOCABULARY:,}"
        found.append(f"{vocabulary}: numbers per token are not comparable")
    backbone: Any = model.module.backbone
    size = sum(weight.numel() for weight in backbone.parameters())
    if not 0.9 < size / PARAMETERS < 1.1:
        found.append(f"a network of {size / 1e6:.3g} million parameters, not {PARAMETERS / 1e6:.3g}")
    for key, theirs in (("special", "both"), ("rows", "packed")):
        if (ours := getattr(made.data, key)) != theirs:
            found.append(f'data.{key} = "{ours}", not "{theirs}"')
    if spec.sequences:
        found.append(f"{number(spec.sequences, 'sequence')} of each corpus at most, not all of it")
    return [*found, "WikiText is read article by article, with an EOS after each; there line by line, empty ones too"]
