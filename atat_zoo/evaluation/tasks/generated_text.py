"""Texts that a model writes: how varied and how improbable to a judge; with an attribute, or longer than learned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from atat_zoo.evaluation import following
from atat_zoo.evaluation.judges import judges_itself
from atat_zoo.evaluation.results.naming import GENERATIVE_PERPLEXITY
from atat_zoo.evaluation.results.tasks import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.registry import component, param, part, problems_of
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Problem, UserError
from atat_zoo.system.machine import lacking

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.writer import Generation


class JudgedTask(Task):
    """A task that writes texts, which a judge may score."""

    judge: Any  # the specification, or None

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        yield from problems_of(self.judge, experiment) if self.judge else ()

    @override
    def absent(self) -> Iterator[str]:
        yield from lacking([self.judge] if self.judge else [])
        folder = self.judge.folder if self.judge else None
        if folder is not None and not (RunFolder(Path(folder)).model / WEIGHTS).is_file():
            yield f"the judge: there is no finished run {folder}; name another, or leave judge out"

    def judge_weights(self) -> str | None:
        """Return the SHA-256 of the weights of a judge that is a run."""
        folder = self.judge.folder if self.judge else None
        return None if folder is None else sha256_of(RunFolder(Path(folder)).model / WEIGHTS)

    def refuse_itself(self, run: Path) -> None:
        """Raise `UserError` if the judge is the run whose texts it is to judge."""
        if judges_itself(self.judge, run):
            raise UserError(
                f"judge.path: {self.judge.folder} is the run itself, which does not judge its own text; name another"
            )

    def write(self, model: Model, number: int, *, seed: int, **options: Any) -> Generation:
        """Return texts in windows, and in float32: rounded further, they would depend on how many are written at once.

        The options are those of `Model.sample`.
        """
        batch = model.experiment.evaluation.batch_size
        return model.sample(number, seed=seed, precision="fp32", batch_size=batch, windows=True, **options)

    def scores_of(self, written: Generation, of: str, model: Model, n: int | None = None) -> dict[str, Score]:
        """Return the entropy of texts, with an n their distinct n-grams, and with a judge generative perplexity."""
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
    """n texts with a guidance, and as many without one from the same seeds, by the run's sampler.

    `accuracy`: the share of texts in which a classifier finds the attribute more probable than not. `entropy`: of the
    token frequencies within a text, in nats. `generative perplexity`: by the judge, if there is one. Each is of the
    guided texts and, `unguided`, of the others. Nonsense can have any accuracy, which the other numbers show.
    """

    name = "controlled"
    summary = "guided texts: how often a classifier finds the attribute, beside how varied and how improbable they are"
    refs = ("arXiv:1912.02164",)

    guidance: Any = part("guidance", attrs.NOTHING, help="what leads towards the attribute")
    classifier: Any = part("classifier", attrs.NOTHING, help="what finds it; best another than the guidance has")
    texts: int = param(64, help="texts that are written with guidance, and without", ge=1)
    judge: Any = part("judge", None, help="another model, by which the texts are improbable or not")

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
        for guidance, whose in following(((self.guidance, ""), ("none", "unguided ")), progress, self.texts):
            written = self.write(model, self.texts, seed=seed, guidance=guidance)
            found = (finds(written.sample.tokens).cpu() > math.log(0.5)).double()
            scores[f"{whose}accuracy"] = Score.over("share of texts", found, of=of)
            scores |= {f"{whose}{name}": score for name, score in self.scores_of(written, of, model).items()}
        return scores


@component
class LongTextTask(JudgedTask):
    """n texts of a length, by the run's guidance, in windows of the training length that are framed as trained.

    `entropy`: of the token frequencies within a text, in nats. `distinct`: the share of the n-grams of a text's tokens
    that are distinct. `generative perplexity`: by the judge, if there is one. The first two fall where a text repeats
    itself, which a judge finds probable. How fast it writes is a note: no machine is another.
    """

    name = "long_text"
    summary = "texts of 2,048 tokens, block by block: how varied each is, and how improbable to a judge"
    refs = ("arXiv:2406.07524", "arXiv:2503.09573")

    length: int = param(2048, help="tokens in a text", ge=2)
    texts: int = param(16, help="texts that are written", ge=1)
    n: int = param(2, help="tokens of the n-grams of `distinct`", ge=1)
    sampler: Any = part("sampler", "semi_autoregressive", help="what writes them")
    judge: Any = part("judge", None, help="another model, by which they are improbable or not")

    def __attrs_post_init__(self) -> None:
        if self.n > self.length:
            raise ValueError(f"n = {self.n}: a text of {self.length} tokens has no n-grams of so many; lower n")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        learned = experiment.data.length
        if self.length > learned and not self.sampler.blockwise:
            problem = f"{self.sampler.name!r} writes at most the {learned} tokens that the model has learned"
            yield Problem("evaluation.tasks", f'{problem}; lower length, or take the sampler "semi_autoregressive"')
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
        scores["speed"] = f"{speed:,.0f} tokens per second in float32, {nfe:,.1f} evaluations a text"
        if progress:
            progress(self.texts, self.texts)
        return scores
