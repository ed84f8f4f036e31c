"""Tasks that score generated texts by diversity and with a judge model: controlled generation and long texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from atat_zoo.evaluation import track_progress
from atat_zoo.evaluation.judges import judges_itself
from atat_zoo.evaluation.results.quantity_names import GENERATIVE_PERPLEXITY
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.registry import component, component_param, param, problems_of
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Problem, UserError
from atat_zoo.system.machine import lacking

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.evaluation.judges import Judge
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.classifiers import Classifier
    from atat_zoo.generation.guidance import Guidance
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.samplers import Sampler
    from atat_zoo.generation.text_generator import Generation


class JudgedTask(Task):
    """A task that generates texts, which an optional judge model scores."""

    judge: Any  # the judge component, or None

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of the judge, if there is one."""
        yield from problems_of(self.judge, experiment) if self.judge else ()

    @override
    def absent(self) -> Iterator[str]:
        yield from lacking([self.judge] if self.judge else [])
        folder = self.judge.folder if self.judge else None
        if folder is not None and not (RunFolder(Path(folder)).model / WEIGHTS).is_file():
            yield f"judge: {folder} is not a finished run; choose another run, or leave judge out"

    def judge_weights(self) -> str | None:
        """Return the SHA-256 of the judge's weights, or None if the judge is not a run."""
        folder = self.judge.folder if self.judge else None
        return None if folder is None else sha256_of(RunFolder(Path(folder)).model / WEIGHTS)

    def refuse_itself(self, run: Path) -> None:
        """Raise `UserError` if the judge is the evaluated run."""
        if judges_itself(self.judge, run):
            raise UserError(
                f"judge.path: {self.judge.folder} is the evaluated run, which cannot judge its own text; choose another"
            )

    def write(self, model: Model, number: int, *, seed: int, **options: Any) -> Generation:
        """Return texts generated as windows of running text, in float32 so that they do not depend on the batch size.

        The options are those of `Model.sample`.
        """
        batch = model.experiment.evaluation.batch_size
        return model.sample(number, seed=seed, precision="fp32", batch_size=batch, windows=True, **options)

    def scores_of(self, written: Generation, of: str, model: Model, n: int | None = None) -> dict[str, Score]:
        """Return scores of texts: entropy, distinct n-grams (given n), and generative perplexity (given a judge)."""
        from atat_zoo.evaluation.metric_states import distinct, entropy
        from atat_zoo.evaluation.text_scores import pieces_of

        cut = pieces_of(model.tokenizer, written.sample.tokens)
        scores = {"entropy": Score.over("nats", [entropy("", text)[0] for text in cut], of=of)}
        if n is not None:
            found = [distinct(text, n) for text in cut]
            scores[f"distinct-{n}"] = Score.over("share of n-grams", *zip(*found, strict=True), of=of)
        if self.judge is not None:
            nats, counted = self.judge.build(model.placement).nats(written.texts)
            scores[GENERATIVE_PERPLEXITY] = Score.over(GENERATIVE_PERPLEXITY, nats, counted, of=of, exponential=True)
        return scores


@component
class ControlledTask(JudgedTask):
    """Comparison of n texts generated with guidance and n texts without, from the same seeds with the run's sampler.

    `accuracy` is the fraction of texts that the classifier assigns to the attribute. `entropy` is the unigram entropy
    within a text, in nats. `generative perplexity` is computed if a judge model is given. Each score is reported for
    the guided texts and, as `unguided`, for the other texts. Nonsense can reach a high accuracy, but the other metrics
    reveal it.
    """

    name = "controlled"
    summary = "controlled generation: attribute accuracy according to a classifier, diversity and generative perplexity"
    refs = ("arXiv:1912.02164",)

    guidance: Guidance = component_param("guidance", attrs.NOTHING, help="guidance towards the attribute")
    classifier: Classifier = component_param(
        "classifier",
        attrs.NOTHING,
        help="classifier that detects the attribute, preferably not the one that guides the generation",
    )
    texts: int = param(64, help="number of texts to generate with guidance, and again without guidance", ge=1)
    judge: Judge | None = component_param("judge", None, help="judge model that computes generative perplexity")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        yield from conflicts_of(experiment, guidance=self.guidance)
        yield from super().check(experiment)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return [unstructure(experiment.parts["sampler"]), self.judge_weights()]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import math

        self.refuse_itself(run)
        finds = self.classifier.build(model.tokenizer, model.experiment.data.length)
        scores = dict[str, Score]()
        of = f"{self.texts} texts, seed {seed}"
        for guidance, whose in track_progress(((self.guidance, ""), ("none", "unguided ")), progress, self.texts):
            written = self.write(model, self.texts, seed=seed, guidance=guidance)
            found = (finds(written.sample.tokens).cpu() > math.log(0.5)).double()
            scores[f"{whose}accuracy"] = Score.over("share of texts", found, of=of)
            scores |= {f"{whose}{name}": score for name, score in self.scores_of(written, of, model).items()}
        return scores


@component
class LongTextTask(JudgedTask):
    """Generation of n long texts with the run's guidance, in windows of the training length.

    `entropy` is the unigram entropy within a text, in nats. `distinct` is the fraction of distinct token n-grams in a
    text. `generative perplexity` is computed if a judge model is given. All three are low for repetitive text.
    Throughput is printed as a note because it depends on the machine.
    """

    name = "long_text"
    summary = "long generation (2,048 tokens by default), block by block: diversity and generative perplexity"
    refs = ("arXiv:2406.07524", "arXiv:2503.09573")

    length: int = param(2048, help="tokens per text", ge=2)
    texts: int = param(16, help="number of texts", ge=1)
    n: int = param(2, help="number of tokens per n-gram for `distinct`", ge=1)
    sampler: Sampler = component_param("sampler", "semi_autoregressive", help="sampler that generates the texts")
    judge: Judge | None = component_param("judge", None, help="judge model that computes generative perplexity")

    def __attrs_post_init__(self) -> None:
        if self.n > self.length:
            raise ValueError(f"n = {self.n} is larger than length = {self.length}; lower n")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        learned = experiment.data.length
        if self.length > learned and not self.sampler.blockwise:
            problem = f"{self.sampler.name!r} generates at most {learned} tokens, the training length"
            yield Problem("evaluation.tasks", f'{problem}; lower length, or use the sampler "semi_autoregressive"')
        yield from conflicts_of(experiment, sampler=self.sampler)
        yield from super().check(experiment)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return [unstructure(experiment.parts["guidance"]), self.judge_weights()]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        self.refuse_itself(run)
        of = f"{self.texts} texts of {self.length} tokens, seed {seed}"
        if progress:
            progress(0, self.texts)
        written = self.write(model, self.texts, seed=seed, sampler=self.sampler, length=self.length)
        scores: dict[str, Score | str] = {**self.scores_of(written, of, model, self.n)}
        speed, nfe = self.texts * self.length / written.seconds, float(written.sample.nfe.double().mean())
        scores["speed"] = f"{speed:,.0f} tokens per second in float32, NFE {nfe:,.1f} per text"
        if progress:
            progress(self.texts, self.texts)
        return scores
