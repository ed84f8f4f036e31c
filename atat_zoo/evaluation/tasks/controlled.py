"""Text with an attribute: how often guidance reaches it, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
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
class ControlledTask(Task):
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

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        yield from conflicts_of(experiment, guidance=self.guidance)
        yield from judge_problems(self.judge, experiment)

    @override
    def absent(self) -> Iterator[str]:
        yield from judge_absent(self.judge)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return [unstructure(experiment.parts["sampler"]), judge_inputs(self.judge)]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import math

        require_another(self.judge, run)
        finds = self.classifier.build(model.tokenizer, model.experiment.data.length)
        scores = dict[str, Score]()
        of = f"{self.texts} texts, seed {seed}"
        # In float32: rounded further, the texts would depend on how many are written at once.
        how: Any = {"seed": seed, "precision": "fp32", "batch_size": model.experiment.evaluation.batch_size}
        how["windows"] = True
        for number, (guidance, whose) in enumerate(((self.guidance, ""), ("none", "unguided "))):
            if progress:
                progress(number * self.texts, 2 * self.texts)
            written = model.sample(self.texts, guidance=guidance, **how)
            found = (finds(written.sample.tokens).cpu() > math.log(0.5)).double()
            of_texts = {
                "accuracy": Score.over("share of texts", found, of=of),
                **scores_of(written, of, judge=self.judge, model=model),
            }
            scores |= {f"{whose}{name}": score for name, score in of_texts.items()}
        if progress:
            progress(2 * self.texts, 2 * self.texts)
        return scores
