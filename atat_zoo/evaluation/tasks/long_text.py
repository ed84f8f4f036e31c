"""Texts beyond the training length, written block by block: whether they become dull, or improbable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.errors import Problem
from atat_zoo.evaluation.results.tasks import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.evaluation.tasks.written import judge_absent, judge_inputs, judge_problems, require_another, scores_of
from atat_zoo.registry import component, param, part
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model


@component
class LongTextTask(Task):
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

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        learned = experiment.data.length
        if self.length > learned and not self.sampler.blockwise:
            problem = f"{self.sampler.name!r} writes at most the {learned} tokens that the model has learned"
            yield Problem("evaluation.tasks", f'{problem}; lower length, or take the sampler "semi_autoregressive"')
        yield from conflicts_of(experiment, sampler=self.sampler)
        yield from judge_problems(self.judge, experiment)

    @override
    def absent(self) -> Iterator[str]:
        yield from judge_absent(self.judge)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return [unstructure(experiment.parts["guidance"]), judge_inputs(self.judge)]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        require_another(self.judge, run)
        batch = model.experiment.evaluation.batch_size
        # In float32: rounded further, the texts would depend on how many are written at once.
        how: Any = {"sampler": self.sampler, "length": self.length, "seed": seed, "precision": "fp32"}
        how |= {"batch_size": batch, "windows": True}
        if progress:
            progress(0, self.texts)
        written = model.sample(self.texts, **how)
        of = f"{self.texts} texts of {self.length} tokens, seed {seed}"
        scores: dict[str, Score | str] = {**scores_of(written, of, judge=self.judge, model=model, n=self.n)}
        speed, nfe = self.texts * self.length / written.seconds, float(written.sample.nfe.double().mean())
        scores["speed"] = f"{speed:,.0f} tokens per second in float32, {nfe:,.1f} evaluations a text"
        if progress:
            progress(self.texts, self.texts)
        return scores
