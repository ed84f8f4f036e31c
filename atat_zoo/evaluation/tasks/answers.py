"""The task `answers`, which compares generated answers in held-out dialogues with the true answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from typing_extensions import override

from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of, sampling_inputs
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.evaluation.held_out_text import Text
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.samplers import Sampler

_WORD = re.compile(r"\w+")


@component
class AnswersTask(Task):
    """Generation of the last answer in each held-out dialogue, given everything before it.

    `exact match` is the fraction of answers that equal the true answer, except for white space at the ends. `shared
    words` is the F1 of the two answers' words. With one dialogue per sequence, the model decides the length of its
    answer; with packed dialogues, the length is given, so the two settings are not comparable.
    """

    name = "answers"
    summary = "answers to held-out questions: exact match and word overlap (F1)"
    refs = ("arXiv:1606.05250",)
    reads_dialogues: ClassVar[bool] = True

    questions: int = param(256, help="maximum number of sequences, evenly spaced; 0 means all", ge=0)
    sampler: Sampler | None = component_param("sampler", None, help="sampler to answer with (default: the run's)")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a `Problem` if the model does not read dialogues, and the experiment's conflicts with the sampler."""
        if experiment.data.format != "chat":
            yield Problem("evaluation.tasks", 'the task needs dialogues (data.format = "chat"); leave the task out')
        if self.sampler is not None:
            yield from conflicts_of(experiment, sampler=self.sampler)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return sampling_inputs(self.sampler, experiment)

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        from atat_zoo.evaluation.held_out_text import digest, held_out_text
        from atat_zoo.evaluation.tasks.infilling import SHARE_OF_TEXTS
        from atat_zoo.generation.layout import answer_text

        text = held_out_text(model, run, "validation", self.questions, packed=True)
        questions = questions_of(text)
        true = [answer_text(model.tokenizer, question.answer).strip() for question in questions]
        batch = model.experiment.evaluation.batch_size
        answers = answers_to(model, questions, seed=seed, batch_size=batch, sampler=self.sampler)
        written = [answer.strip() for answer in answers]
        if progress:
            progress(len(questions), len(questions))
        of, pairs = digest(text.tokens, text.maskable), list(zip(written, true, strict=True))
        return {
            "exact match": Score.over(SHARE_OF_TEXTS, [float(one == other) for one, other in pairs], of=of),
            "shared words": Score.over("F1", [shared_words(*pair) for pair in pairs], of=of),
        }


class HeldOutQuestion(NamedTuple):
    """A dialogue up to and including its last answer, in tokens."""

    row: int  # index of the dialogue's row in the held-out text
    given: list[int]
    answer: list[int]  # including its end, and the padding if the dialogue has its own row


def questions_of(text: Text) -> list[HeldOutQuestion]:
    """Return the last answer of each dialogue in a text, together with the dialogue before the answer."""
    import torch

    of_row = torch.zeros_like(text.tokens) if text.documents is None else text.documents
    found = []
    for number, (ids, answers, documents) in enumerate(zip(text.tokens, text.maskable, of_row, strict=True)):
        for document in range(int(documents.max()) + 1):
            own, learned = ids[documents == document].tolist(), answers[documents == document].tolist()
            end = len(learned) - learned[::-1].index(True)
            first = next(i for i in range(end, 0, -1) if not learned[i - 1])
            found.append(HeldOutQuestion(number, own[:first], own[first:end]))
    return found


def answers_to(
    model: Model, questions: Sequence[HeldOutQuestion], *, seed: int, batch_size: int, sampler: Any = None
) -> list[str]:
    """Return the model's answers, computed in float32 with a sampler (default: the run's) and the run's guidance.

    An answer is generated from as many masks as the true answer has tokens. If each dialogue has its own row, the masks
    fill the rest of the row, so that the model decides the answer's length. The random numbers of question i are a
    function of (seed, i).
    """
    import torch

    from atat_zoo.generation.layout import answer_text

    parts, mask_id = model.experiment.parts, model.context.mask_id
    text_generator, sampler = parts["guidance"].guide(model.text_generator("fp32")), sampler or parts["sampler"]
    written: dict[int, str] = {}
    by_length: dict[int, list[int]] = {}
    for i, question in enumerate(questions):
        by_length.setdefault(len(question.given) + len(question.answer), []).append(i)
    for indices in by_length.values():
        z = torch.tensor([questions[i].given + [mask_id] * len(questions[i].answer) for i in indices])
        rows = torch.tensor(indices)
        filled = text_generator.fill(sampler, z, rows=rows, seed=seed, batch_size=batch_size).tokens
        for i, ids in zip(indices, filled.tolist(), strict=True):
            written[i] = answer_text(model.tokenizer, ids[len(questions[i].given) :])
    return [written[i] for i in range(len(questions))]


def shared_words(one: str, other: str) -> float:
    """Return SQuAD's F1 of the words in two texts, ignoring order and case; it is 1 if neither text contains a word."""
    a, b = (Counter(_WORD.findall(text.lower())) for text in (one, other))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
