"""Evaluation on the seven corpora of MDLM's zero-shot table (arXiv:2406.07524, Table 3), with the published values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import attrs
from typing_extensions import override

from atat_zoo.evaluation import progress_of_part
from atat_zoo.evaluation.results.format import number
from atat_zoo.evaluation.results.quantity_names import title
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task
from atat_zoo.evaluation.tasks.held_out import bound_score
from atat_zoo.experiment import EvaluationSpec, recipe
from atat_zoo.registry import component, component_param, param, problems_of
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from atat_zoo.data import Split
    from atat_zoo.data.corpora import Corpus
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.modeling.bounds import Bound

Name = Literal["ptb", "wikitext103", "lm1b", "lambada", "ag_news", "pubmed", "arxiv"]


class CorpusRow(NamedTuple):
    """A corpus of the zero-shot table."""

    title: str
    split: Split  # split of the corpus recipe; `train` if the recipe does not split the corpus
    published: tuple[float, float, float]  # values of the models in `PUBLISHED`


# The exact value of an autoregressive model and the bounds of two diffusion models, trained by the table's authors.
PUBLISHED = ("AR", "SEDD", "MDLM")
TABLE: Mapping[Name, CorpusRow] = {
    "ptb": CorpusRow("PTB", "validation", (82.05, 100.09, 95.26)),
    "wikitext103": CorpusRow("WikiText", "validation", (25.75, 34.28, 32.83)),
    "lm1b": CorpusRow("LM1B", "validation", (51.25, 68.20, 67.01)),
    "lambada": CorpusRow("LAMBADA", "train", (51.28, 49.86, 47.52)),
    "ag_news": CorpusRow("AG News", "test", (52.09, 62.09, 61.15)),
    "pubmed": CorpusRow("PubMed", "validation", (49.01, 44.53, 41.89)),
    "arxiv": CorpusRow("arXiv", "validation", (41.73, 38.48, 37.37)),
}
# The settings with which those models were trained; the tokens are 1,000,000 steps of 512 sequences.
LENGTH, VOCABULARY, TOKENS, PARAMETERS = 1024, 50_257, 524e9, 169e6


def published_of(corpus: Corpus | None) -> tuple[float, float, float] | None:
    """Return the published values of a corpus in the table, or None for another corpus."""
    return next((row.published for name, row in TABLE.items() if corpus == recipe(name)), None)


@component
class ZeroShotTask(Task):
    """NLL bound on corpora that the model was not trained on, per token of its tokenizer, next to published values."""

    name = "zero_shot"
    summary = (
        "zero-shot perplexity on the seven corpora in MDLM's table, with the published values of AR, SEDD and MDLM"
    )
    refs = ("arXiv:2406.07524",)

    corpora: tuple[Name, ...] = param(tuple(TABLE), help="corpora to evaluate")
    root: str = param(".", help="folder that contains corpora/")
    sequences: int = param(1024, help="maximum number of sequences per corpus; 0 means all, as in the paper", ge=0)
    mask_samples: int = param(4, help="number of masks sampled per sequence", ge=1)
    bound: Bound = component_param("bound", "exact_k", help="bound estimator")

    def __attrs_post_init__(self) -> None:
        if not self.corpora:
            raise ValueError("corpora is empty; name a corpus, or leave corpora out for all seven")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Return the problems of the bound estimator with the experiment."""
        return problems_of(self.bound, experiment)

    @override
    def absent(self) -> Iterator[str]:
        for name in self.corpora:
            try:
                self._text(name).stamp()
            except UserError as error:
                problem = str(error).removeprefix("corpus.train: ")
                yield f"{TABLE[name].title}: {problem}, or leave {name!r} out of the task's corpora"

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return {name: self._text(name).fingerprint() for name in self.corpora}

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        from atat_zoo.data.sequences import corpus_sequences
        from atat_zoo.evaluation.held_out_text import digest
        from atat_zoo.evaluation.likelihood import measure

        form, batch = model.experiment.data, model.experiment.evaluation.batch_size
        spec = EvaluationSpec(mask_samples=self.mask_samples, bound=self.bound, batch_size=batch)
        packed = partial(corpus_sequences, length=model.context.length, special=form.special_tokens, rows=form.packing)
        texts = {
            name: packed(self._text(name), model.tokenizer, "train", limit=self.sequences) for name in self.corpora
        }
        scores, done, total = {}, 0, sum(len(text.tokens) for text in texts.values())
        for name, (tokens, maskable, _) in texts.items():
            told = progress_of_part(progress, done, total)
            found = measure(model.module, tokens, maskable, spec, seed=seed, progress=told).contribution
            (quantity, nats), *_ = found.items()
            published = dict(zip(PUBLISHED, TABLE[name].published, strict=True))
            of = digest(tokens, maskable)
            scores[TABLE[name].title] = bound_score(title(quantity), nats, maskable.sum(1), of, published)
            done += len(tokens)
        return scores

    @override
    def notes(self, model: Model) -> Iterator[str]:
        for sentence in self._differences(model):
            yield f"not as published (arXiv:2406.07524): {sentence}"

    def _text(self, name: Name) -> Any:
        """Return the part of a corpus that the table uses."""
        corpus: Any = recipe(name)
        paths = tuple(str(Path(self.root) / path) for path in getattr(corpus, TABLE[name].split))
        shares = {"validation_share": 0.0, "test_share": 0.0}
        return attrs.evolve(corpus, train=paths, validation=(), test=(), **shares)

    def _differences(self, model: Model) -> Iterator[str]:
        """Yield the differences between this evaluation and the published one."""
        made = model.experiment
        corpus, shown = made.parts["corpus"], made.train.steps * made.train.batch_size * made.data.length
        if getattr(corpus, "train", None) != recipe("openwebtext").train:
            yield f"trained on corpus {corpus.name!r}, not OpenWebText"
        if not 0.9 < shown / TOKENS < 1.1:
            yield f"trained on {shown:.2g} tokens, including repetitions, not {TOKENS:.2g}"
        if model.context.length != LENGTH:
            yield f"sequences of {model.context.length} tokens, not {LENGTH}"
        if model.tokenizer.vocabulary_size != VOCABULARY:
            vocabulary = f"a vocabulary of {model.tokenizer.vocabulary_size:,} tokens, not {VOCABULARY:,}"
            yield f"{vocabulary}: numbers per token are not comparable"
        backbone: Any = model.module.backbone
        size = sum(weight.numel() for weight in backbone.parameters())
        if not 0.9 < size / PARAMETERS < 1.1:
            yield f"a network of {size / 1e6:.3g} million parameters, not {PARAMETERS / 1e6:.3g}"
        for key, theirs in (("special_tokens", "both"), ("packing", "packed")):
            if (ours := getattr(made.data, key)) != theirs:
                yield f'data.{key} = "{ours}", not "{theirs}"'
        if self.sequences:
            yield f"{number(self.sequences, 'sequence')} per corpus at most, not the whole corpus"
        if "wikitext103" in self.corpora:
            yield "WikiText is read article by article, with an EOS after each, not line by line with empty lines"
