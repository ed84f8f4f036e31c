"""Tasks that compute the NLL of held-out text: with two estimators, over many decoding orders, and under samplers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import attrs
from typing_extensions import override

from atat_zoo.evaluation import progress_of_part, track_progress
from atat_zoo.evaluation.results.format import told_apart
from atat_zoo.evaluation.results.quantity_names import BRACKET, POLICY_BOUND, POLICY_LIKELIHOOD, title
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.evaluation.tasks.generated_text import JudgedTask
from atat_zoo.experiment import EvaluationSpec, conflicts
from atat_zoo.registry import component, component_param, components_param, param
from atat_zoo.registry.spec import component_base, unstructure
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.data import Split
    from atat_zoo.data.corpora import Corpus
    from atat_zoo.evaluation import Progress
    from atat_zoo.evaluation.held_out_text import Text
    from atat_zoo.evaluation.judges import Judge
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.samplers import Sampler

# One token at a time in a random order: the model itself, without the shortcuts of a sampler.
ONE_AT_A_TIME = {"use": "combination", "order": "random", "tokens_per_step": "one_at_a_time"}


@component_base
class OnText(Task):
    """A task on the text of a corpus, or on the run's held-out text."""

    corpus: Corpus | None = component_param(
        "corpus", None, help="corpus to evaluate (default: the run's held-out text)"
    )
    split: Literal["validation", "test", "all"] = param(
        "validation", help="split to evaluate; all: the text of every split, also for a corpus without held-out text"
    )
    sequences: int = param(1024, help="maximum number of sequences, evenly spaced; 0 means all", ge=0)

    def __attrs_post_init__(self) -> None:
        if self.corpus is None and self.split == "all":
            raise ValueError("split = all includes the run's training text; pass a corpus, or choose another split")

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return (self.corpus or experiment.parts["corpus"]).fingerprint()

    def split_of(self, corpus: Corpus) -> Split | Literal["all"]:
        """Return the split to read: `all` if nothing of a corpus other than the run's is held out."""
        if self.split == "all" or (self.corpus is not None and corpus.undivided):
            return "all"
        return self.split if self.corpus is None else corpus.held_out_split(self.split)

    def text(self, model: Model, run: Path) -> Text:
        """Return the sequences of the text, packed as during training."""
        from atat_zoo.evaluation.held_out_text import held_out_text, text_of

        if self.corpus is None:
            return held_out_text(model, run, cast("Split", self.split), self.sequences)  # never `all`
        split, corpus = self.split_of(self.corpus), self.corpus
        spec = EvaluationSpec(sequences=self.sequences, split="test" if split == "test" else "validation")
        return text_of(model, run, spec, corpus=corpus, corpus_name=corpus.name, all_of_corpus=split == "all")


def bound_score(quantity: str, nats: Tensor, n: Tensor, of: str, published: Mapping[str, float] | None = None) -> Score:
    """Return a score: the exponential of the mean nats per token.

    `nats` are per token, [N, L], or per text, [N]; `n` is the number of tokens of each text, [N].
    """
    nats = nats if nats.dim() == 1 else nats.sum(1)
    return Score.over(quantity, nats, n, of=of, exponential=True, published=published)


def without_special(model: Model, text: Text, nats: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask of BOS and EOS, bool [n, L], the nats [n] of the other tokens, and their number [n]."""
    import torch

    from atat_zoo.evaluation.held_out_text import special_ids

    special = text.maskable & torch.isin(text.tokens, torch.tensor(special_ids(model.tokenizer), dtype=torch.int64))
    return special, torch.where(special, 0.0, nats).sum(1), (text.maskable & ~special).sum(1)


@component
class HeldOutTask(OnText):
    """NLL bound of a text, per token with two estimators, `exact_k` and `continuous_t`, and per byte.

    Any further bound of the objective, such as the `sets bound`, is reported in a separate row. With an exact
    likelihood, only one value is reported. `calibration error` is computed under the masks of `exact_k`.
    """

    name = "held_out"
    summary = "NLL bound of a text with two estimators, per token and per byte, and calibration"
    refs = ("arXiv:2406.07524", "arXiv:1706.04599")

    mask_samples: int = param(4, help="number of masks sampled per sequence, for each estimator", ge=1)

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        import math

        from atat_zoo.evaluation.held_out_text import byte_counts, digest
        from atat_zoo.evaluation.likelihood import measure

        text, form = self.text(model, run), model.experiment.data
        x, maskable, n = text.tokens, text.maskable, text.counted.sum(1)
        of, sizes = digest(x, maskable), byte_counts(model.tokenizer, x, maskable)
        scores: dict[str, Score | str] = {}
        specs = list(self._specs(model.experiment))
        for number, spec in enumerate(specs):
            told = progress_of_part(progress, number * len(x), len(specs) * len(x))
            found = measure(
                model.module, x, maskable, spec, seed=seed, form=form.format, counted=text.counted, progress=told
            )
            (quantity, nats), *others = found.contribution.items()
            if number:
                scores[f"by {spec.bound.name}"] = bound_score(title(quantity), nats, n, of)
                continue
            scores["bound"] = bound_score(title(quantity), nats, n, of)
            # Such a model was not trained on uniform masks, under which the perplexity is defined.
            scores |= {title(other): bound_score(title(other), theirs, n, of) for other, theirs in others}
            special, plain, rest = without_special(model, text, nats)
            if special.any():
                scores["without BOS and EOS"] = bound_score(title(quantity), plain, rest, of)
            scores["per byte"] = Score.over("bits per byte", nats.sum(1) / math.log(2), sizes, of=of)
            (error,) = found.metrics.values()
            calibrated = Score(quantity="error", value=error.value, stderr=error.stderr, items=len(x))
            scores["calibration error"] = calibrated
        size = f"{int(n.sum()):,} tokens in {len(x):,} rows of {x.shape[1]}, {int(sizes.sum()):,} bytes"
        ends = int((special & text.counted).sum())
        scores["text"] = f'{size}; {ends:,} tokens are BOS or EOS (data.special_tokens = "{form.special_tokens}")'
        return scores

    def _specs(self, experiment: Experiment) -> Iterator[EvaluationSpec]:
        """Yield the settings for `exact_k`, and those for `continuous_t` if the likelihood is not exact."""
        batch = experiment.evaluation.batch_size
        yield EvaluationSpec(mask_samples=self.mask_samples, batch_size=batch, metrics=("calibration_error",))
        other = EvaluationSpec(mask_samples=self.mask_samples, batch_size=batch, bound="continuous_t")
        evolved = attrs.evolve(experiment, evaluation=other)
        if not experiment.parts["objective"].exact and not list(conflicts(evolved)):
            yield other


@component
class BracketTask(OnText):
    """Upper and lower limits of the NLL under generation in random order, by default one token per decoding step.

    `bound`, the upper limit, averages K decoding orders inside the logarithm. `one order` is this bound with K = 1, as
    usual for masked diffusion. `truth above` is a lower limit in expectation (docs/explanation/mathematics.md).
    """

    name = "bracket"
    summary = "upper limit of the NLL, averaged over many decoding orders, and a lower limit of the true NLL"
    refs = ("arXiv:1509.00519", "arXiv:2605.24292")

    sequences: int = param(16, help="maximum number of sequences; 0 means all", ge=0)
    orders: int = param(16, help="number K of decoding orders per sequence; K must be even", ge=2)
    sampler: Sampler = component_param("sampler", ONE_AT_A_TIME, help="sampler whose decoding orders are used")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.orders % 2:
            raise ValueError(
                f"orders = {self.orders}: a bracket compares two halves of the orders; set orders to an even number"
            )

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the experiment's conflicts with the sampler, and a `Problem` if the sampler has no policy bound."""
        yield from conflicts_of(experiment, sampler=self.sampler)
        if why := self.sampler.no_policy_bound_because:
            of = f"sampler {self.sampler.name!r} does not have a {POLICY_BOUND}"
            yield Problem("evaluation.tasks", f"{of}: {why}; choose another sampler")

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        from atat_zoo.evaluation.held_out_text import digest
        from atat_zoo.evaluation.policy import bracket_value, measure_policy

        text = self.text(model, run)
        n, of = text.counted.sum(1), digest(text.tokens, text.maskable)
        text_generator, x, batch = (
            model.text_generator("fp32"),
            (text.tokens, text.maskable),
            model.experiment.evaluation.batch_size,
        )
        found = measure_policy(
            text_generator, self.sampler, *x, seed=seed, orders=self.orders, batch_size=batch, progress=progress
        )
        if self.sampler.deterministic:
            return {"exact": bound_score(POLICY_LIKELIHOOD, found.nats, n, of)}
        scores: dict[str, Score | str] = {
            "bound": bound_score(POLICY_BOUND, found.nats, n, of),
            "one order": bound_score(POLICY_BOUND, found.contribution, n, of),
        }
        if bracket_value(found.ends, n) is None:
            why = "too uncertain, because its width is below the width's standard error, or its lower limit is negative"
            scores["truth"] = f"{BRACKET}: {why}; increase orders or sequences"
        else:
            scores["truth above"] = bound_score("tangent", found.lower, n, of)
        scores["effective orders"] = Score.over(f"of {self.orders}", found.effective, of=of)
        return scores


@component
class PricesTask(OnText, JudgedTask):
    """Policy bounds, NFE and scores of generated texts for several samplers, with the run's guidance.

    The task reports the policy bound on the text, the number of forward passes (NFE), the unigram entropy of the
    generated texts in nats and, with a judge model, generative perplexity. Repetitive text has a low generative
    perplexity, so interpret it together with the entropy.
    """

    name = "prices"
    summary = "policy bound, NFE and generated-text quality of several samplers"
    refs = ("arXiv:2503.04482",)

    samplers: tuple[Sampler, ...] = components_param("sampler", ("ancestral",), help="samplers to evaluate")
    sequences: int = param(64, help="maximum number of sequences; 0 means all", ge=0)
    texts: int = param(16, help="number of texts to generate with each sampler; 0 skips generation", ge=0)
    judge: Judge | None = component_param("judge", None, help="judge model that computes generative perplexity")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.samplers:
            raise ValueError("samplers is empty; name a sampler, or leave samplers out for ancestral sampling")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the experiment's conflicts with the samplers, and the problems of the judge."""
        for sampler in self.samplers:
            yield from conflicts_of(experiment, sampler=sampler)
        yield from super().check(experiment)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return [super().inputs(experiment), unstructure(experiment.parts["guidance"]), self.judge_weights()]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        from atat_zoo.evaluation.held_out_text import digest
        from atat_zoo.evaluation.policy import measure_policy

        self.refuse_itself(run)
        text = self.text(model, run)
        n, of = text.counted.sum(1), digest(text.tokens, text.maskable)
        batch = model.experiment.evaluation.batch_size
        text_generator = model.experiment.parts["guidance"].guide(model.text_generator("fp32"))
        scores: dict[str, Score | str] = {}
        for name, sampler in track_progress(_by_name(self.samplers).items(), progress):
            if why := sampler.no_policy_bound_because:
                scores[f"{name}, price"] = f"{name} does not have a {POLICY_BOUND}: {why}"
            else:
                found = measure_policy(text_generator, sampler, text.tokens, text.maskable, seed=seed, batch_size=batch)
                quantity = POLICY_LIKELIHOOD if sampler.deterministic else POLICY_BOUND
                scores[f"{name}, price"] = bound_score(quantity, found.nats, n, of)
                scores[f"{name}, evaluations"] = Score.over("of a text", found.nfe, of=of)
            if self.texts:
                written = self.write(model, self.texts, seed=seed, sampler=sampler)
                drawn = f"{self.texts} texts of {written.sample.tokens.shape[1]} tokens, seed {seed}"
                scores |= {f"{name}, {what}": each for what, each in self.scores_of(written, drawn, model).items()}
                speed = written.sample.tokens.numel() / written.seconds
                scores[f"{name}, speed"] = f"{name}: {speed:,.0f} tokens per second in float32"
        return scores


def _by_name(samplers: Sequence[Sampler]) -> dict[str, Sampler]:
    """Return a dict of samplers by name, including their parameters if two samplers have the same name."""
    tables = [unstructure(sampler) for sampler in samplers]
    names = [table["use"] for table in tables]
    said = zip(names, told_apart(tables), samplers, strict=True)
    return {f"{name} ({settings})" if names.count(name) > 1 else name: sampler for name, settings, sampler in said}
