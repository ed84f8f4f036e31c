"""Held-out text: what a model pays for it by two estimators, by many orders, and along the steps of samplers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
from typing_extensions import override

from atat_zoo.errors import Problem
from atat_zoo.evaluation.results.format import told_apart
from atat_zoo.evaluation.results.naming import BRACKET, POLICY_BOUND, POLICY_LIKELIHOOD, title
from atat_zoo.evaluation.results.tasks import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.evaluation.tasks.written import judge_absent, judge_inputs, judge_problems, require_another, scores_of
from atat_zoo.experiment import EvaluationSpec, conflicts
from atat_zoo.registry import component, param, part, parts
from atat_zoo.registry.spec import component_base, unstructure

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.data import Split
    from atat_zoo.evaluation import Progress
    from atat_zoo.evaluation.text import Text
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model

# One token after the other, in an order that is drawn: the model without what a sampler saves.
ONE_AT_A_TIME = {"use": "combination", "order": "random", "pace": "one_at_a_time"}


@component_base
class OnText(Task):
    """A task on a text: that of a corpus, or the run's own held-out text."""

    corpus: Any = part("corpus", None, help="the text; the run's own held-out text when absent")
    split: Literal["validation", "test", "all"] = param(
        "validation", help="of the text; all of it where nothing is held out"
    )
    sequences: int = param(1024, help="maximum number of sequences, spread evenly over the text; 0 for all", ge=0)

    def __attrs_post_init__(self) -> None:
        if self.corpus is None and self.split == "all":
            raise ValueError("split = all: a run has learned most of its own text; name a corpus, or a split")

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return (self.corpus or experiment.parts["corpus"]).fingerprint()

    def split_of(self, corpus: Any) -> Split:
        """Return the split that is read: of another text all, `train`, where nothing is held out or all is wanted."""
        if self.split == "all" or (self.corpus is not None and corpus.undivided):
            return "train"
        split: Split = self.split if self.corpus is None else corpus.held_out_split(self.split)
        return split

    def text(self, model: Model, run: Path) -> Text:
        """Return the sequences, framed as those that the model was trained on."""
        from atat_zoo.evaluation.text import held_out_text, text_of

        if self.corpus is None:
            return held_out_text(model, run, self.split_of(model.experiment.parts["corpus"]), self.sequences)
        split, corpus = self.split_of(self.corpus), self.corpus
        spec = EvaluationSpec(sequences=self.sequences, split="validation" if split == "train" else split)
        return text_of(model, run, spec, corpus=corpus, corpus_name=corpus.name, all_of_corpus=split == "train")


@component
class HeldOutTask(OnText):
    """The bound on a text: by exactly k masks, by another estimator of the same number, and over bytes.

    A bound of the objective's own, such as the `sets bound`, has a row of its own. Where the likelihood is exact,
    there is one number. `calibration error` is of the predictions under the first masks.
    """

    name = "held_out"
    summary = "the bound on a text by two estimators, per token and byte, and how well the predictions are calibrated"
    refs = ("arXiv:2406.07524", "arXiv:1706.04599")

    draws: int = param(4, help="masks drawn for every sequence, by each estimator", ge=1)

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        import math

        import torch

        from atat_zoo.evaluation.likelihood import measure
        from atat_zoo.evaluation.text import byte_counts, digest, special_ids

        text = self.text(model, run)
        x, maskable = text.tokens, text.maskable
        form = model.experiment.data
        n = text.counted.sum(1)
        of, sizes = digest(x, maskable), byte_counts(model.tokenizer, x, maskable)
        special = maskable & torch.isin(x, torch.tensor(special_ids(model.tokenizer), dtype=x.dtype))
        scores: dict[str, Score | str] = {}
        specs = list(self._specs(model.experiment))
        for number, spec in enumerate(specs):

            def told(done: int, rows: int, before: int = number) -> None:
                if progress:
                    progress(before * rows + done, len(specs) * rows)

            of_rows: Any = {"form": form.form, "counted": text.counted}
            found = measure(model.module, x, maskable, spec, seed=seed, progress=told, **of_rows)
            (quantity, nats), *others = found.contribution.items()
            if number:
                scores[f"by {spec.bound.name}"] = _price(title(quantity), nats.sum(1), n, of)
                continue
            scores["bound"] = _price(title(quantity), nats.sum(1), n, of)
            # Such a model did not learn uniform masks, of which the perplexity is.
            scores |= {title(other): _price(title(other), theirs.sum(1), n, of) for other, theirs in others}
            if special.any():
                of_text = torch.where(special, 0.0, nats).sum(1)
                scores["without BOS and EOS"] = _price(title(quantity), of_text, (maskable & ~special).sum(1), of)
            scores["per byte"] = Score.over("bits per byte", nats.sum(1) / math.log(2), sizes, of=of)
            (error,) = found.metrics.values()
            calibrated = Score(quantity="error", value=error.value, stderr=error.stderr, items=len(x))
            scores["calibration error"] = calibrated
        size = f"{int(n.sum()):,} tokens in {len(x):,} rows of {x.shape[1]}, {int(sizes.sum()):,} bytes"
        ends = int((special & text.counted).sum())
        scores["text"] = f'{size}; {ends:,} are BOS or EOS (data.special = "{form.special}")'
        return scores

    def _specs(self, experiment: Experiment) -> Iterator[EvaluationSpec]:
        """Yield what measures the bound by exact_k, and by continuous_t where that has a meaning."""
        batch = experiment.evaluation.batch_size
        yield EvaluationSpec(draws=self.draws, batch_size=batch, metrics=("calibration_error",))
        other = EvaluationSpec(draws=self.draws, batch_size=batch, bound="continuous_t")
        evolved: Any = attrs.evolve(experiment, evaluation=other)
        if not experiment.parts["objective"].exact and not list(conflicts(evolved)):
            yield other


@component
class BracketTask(OnText):
    """Between which two numbers the likelihood of a text lies, if its tokens come one by one in a random order.

    `bound`: the mean probability of K orders is inside the logarithm. `one order`: the same with K = 1, the bound of
    masked diffusion by another way. `truth above`: the tangent, below which the truth does not lie, on average
    (docs/mathematics.md).
    """

    name = "bracket"
    summary = "a bound by many orders, and how far below it the truth may lie"
    refs = ("arXiv:1509.00519", "arXiv:2605.24292")

    sequences: int = param(16, help="maximum number of sequences; 0 for all", ge=0)
    orders: int = param(16, help="K, orders of each, an even number", ge=2)
    sampler: Any = part("sampler", ONE_AT_A_TIME, help="whose orders they are")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.orders % 2:
            raise ValueError(f"orders = {self.orders}: half of them are held against the others; name an even number")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        yield from conflicts_of(experiment, sampler=self.sampler)
        if why := self.sampler.no_policy_bound_because:
            of = f"sampler {self.sampler.name!r} has no {POLICY_BOUND}"
            yield Problem("evaluation.tasks", f"{of}: {why}; choose another")

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        from atat_zoo.evaluation.policy import bracket_value, measure_policy
        from atat_zoo.evaluation.text import digest

        text = self.text(model, run)
        n, of = text.counted.sum(1), digest(text.tokens, text.maskable)
        how: Any = {"seed": seed, "orders": self.orders, "batch_size": model.experiment.evaluation.batch_size}
        writer = model.writer("fp32")
        found = measure_policy(writer, self.sampler, text.tokens, text.maskable, progress=progress, **how)
        if self.sampler.deterministic:
            return {"exact": _price(POLICY_LIKELIHOOD, found.nats, n, of)}
        scores: dict[str, Score | str] = {
            "bound": _price(POLICY_BOUND, found.nats, n, of),
            "one order": _price(POLICY_BOUND, found.contribution.sum(1), n, of),
        }
        if bracket_value(found.ends, n) is None:
            why = "its error is wider than it is, or it lies below zero nats"
            scores["truth"] = f"{BRACKET}: {why}; name more orders or sequences"
        else:
            scores["truth above"] = _price("tangent", found.lower, n, of)
        scores["effective orders"] = Score.over(f"of {self.orders}", found.effective, of=of)
        return scores


@component
class PricesTask(OnText):
    """What a text costs along the steps of samplers, in how many evaluations, and what they write.

    Of each sampler, with the run's guidance: the policy bound on the text, network evaluations, the entropy of what it
    writes, in nats, and with a judge the generative perplexity, which alone says nothing: it is lowest for dull text.
    """

    name = "prices"
    summary = "what a text costs along samplers, in how many evaluations, and what they write"
    refs = ("arXiv:2503.04482",)

    samplers: Any = parts("sampler", ("ancestral",), help="whose steps")
    sequences: int = param(64, help="maximum number of sequences; 0 for all", ge=0)
    texts: int = param(16, help="texts that each sampler writes; 0 for none", ge=0)
    judge: Any = part("judge", None, help="another model, by which what is written is improbable or not")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.samplers:
            raise ValueError("samplers names none; leave it out for ancestral sampling")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        for sampler in self.samplers:
            yield from conflicts_of(experiment, sampler=sampler)
        yield from judge_problems(self.judge, experiment)

    @override
    def absent(self) -> Iterable[str]:
        yield from judge_absent(self.judge)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return [super().inputs(experiment), unstructure(experiment.parts["guidance"]), judge_inputs(self.judge)]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        from atat_zoo.evaluation.policy import measure_policy
        from atat_zoo.evaluation.text import digest

        require_another(self.judge, run)
        text = self.text(model, run)
        n, of = text.counted.sum(1), digest(text.tokens, text.maskable)
        batch = model.experiment.evaluation.batch_size
        writer = model.experiment.parts["guidance"].guide(model.writer("fp32"))
        scores: dict[str, Score | str] = {}
        for number, (sampler, name) in enumerate(zip(self.samplers, _names(self.samplers), strict=True)):
            if progress:
                progress(number, len(self.samplers))
            if why := sampler.no_policy_bound_because:
                scores[f"{name}, price"] = f"{name} has no {POLICY_BOUND}: {why}"
            else:
                found = measure_policy(writer, sampler, text.tokens, text.maskable, seed=seed, batch_size=batch)
                quantity = POLICY_LIKELIHOOD if sampler.deterministic else POLICY_BOUND
                scores[f"{name}, price"] = _price(quantity, found.nats, n, of)
                scores[f"{name}, evaluations"] = Score.over("of a text", found.nfe, of=of)
            if self.texts:
                # In float32: rounded further, the texts would depend on how many are written at once.
                how: Any = {"sampler": sampler, "seed": seed, "precision": "fp32", "batch_size": batch}
                how["windows"] = True
                written = model.sample(self.texts, **how)
                drawn = f"{self.texts} texts of {written.sample.tokens.shape[1]} tokens, seed {seed}"
                of_texts = scores_of(written, drawn, judge=self.judge, model=model)
                scores |= {f"{name}, {what}": score for what, score in of_texts.items()}
                speed = written.sample.tokens.numel() / written.seconds
                scores[f"{name}, speed"] = f"{name}: {speed:,.0f} tokens per second in float32"
        if progress:
            progress(len(self.samplers), len(self.samplers))
        return scores


def _price(quantity: str, nats: Tensor, n: Tensor, of: str) -> Score:
    return Score.over(quantity, nats, n, of=of, exponential=True)


def _names(samplers: Sequence[Any]) -> list[str]:
    """Return a name for each, with its settings where another has the same name."""
    tables = [unstructure(sampler) for sampler in samplers]
    names = [table["use"] for table in tables]
    said = zip(names, told_apart(tables), strict=True)
    return [f"{name} ({settings})" if names.count(name) > 1 else name for name, settings in said]
