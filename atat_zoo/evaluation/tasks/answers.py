"""Answers to held-out questions: how often they are the true ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from atat_zoo.errors import Problem
from atat_zoo.evaluation.results.tasks import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.evaluation.tasks.written import sampling_inputs
from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model


@component
class AnswersTask(Task):
    """Of each held-out dialogue the last answer is written anew, given all that stands before it.

    `exact match`: the share of the questions to which a sampler, with the run's guidance, writes the true answer, but
    for white space at its ends. `shared words`: the F1 of the words of both. In rows of one dialogue the model decides
    how long it answers; in packed ones it is told the number of tokens, so that the two cannot be compared.
    """

    name = "answers"
    summary = "answers to held-out questions: exact matches, and the words that they share with the true ones"
    refs = ("arXiv:1606.05250",)
    reads_dialogues: ClassVar[bool] = True

    questions: int = param(256, help="maximum number of rows of dialogues, spread evenly; 0 for all", ge=0)
    sampler: Any = part("sampler", None, help="what writes the answers; the run's own when absent")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        if experiment.data.form != "chat":
            yield Problem("evaluation.tasks", 'answers are those of dialogues, data.form = "chat"; leave the task out')
        if self.sampler is not None:
            yield from conflicts_of(experiment, sampler=self.sampler)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return sampling_inputs(self.sampler, experiment)

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        from atat_zoo.evaluation.answering import answers_to, questions_of, shared_words
        from atat_zoo.evaluation.tasks.infilling import SHARE_OF_TEXTS
        from atat_zoo.evaluation.text import digest, held_out_text
        from atat_zoo.generation.layout import answer_in

        text = held_out_text(model, run, "validation", self.questions, packed=True)
        questions = questions_of(text)
        true = [answer_in(model.tokenizer, question.answer).strip() for question in questions]
        parts = {"sampler": self.sampler} if self.sampler else {}
        batch = model.experiment.evaluation.batch_size
        written = [answer.strip() for answer in answers_to(model, questions, seed=seed, batch_size=batch, **parts)]
        if progress:
            progress(len(questions), len(questions))
        of, pairs = digest(text.tokens, text.maskable), list(zip(written, true, strict=True))
        return {
            "exact match": Score.over(SHARE_OF_TEXTS, [float(one == other) for one, other in pairs], of=of),
            "shared words": Score.over("F1", [shared_words(*pair) for pair in pairs], of=of),
        }
