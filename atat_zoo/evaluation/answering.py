"""Held-out dialogues: what is asked, the true answers, and what a model answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atat_zoo.evaluation.text import Text
from atat_zoo.generation.layout import answer_in
from atat_zoo.generation.model import Model

_WORD = re.compile(r"\w+")


class HeldOutQuestion(NamedTuple):
    """A dialogue up to its last answer, in tokens."""

    row: int  # the number of its row in the held-out text
    given: list[int]
    answer: list[int]  # with its end, and with what fills the row of a dialogue that has its own


def questions_of(text: Text) -> list[HeldOutQuestion]:
    """Return the last answer of each dialogue of a text, with all that stands before it."""
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
    model: Model, questions: Sequence[HeldOutQuestion], *, seed: int, batch_size: int, **parts: Any
) -> list[str]:
    """Return what a model answers, by its own sampler and guidance or other `parts`, in float32.

    It is given as many masks as the true answer has tokens: in rows of one dialogue, which are filled, all the rest of
    the row, so that it ends where it wants. Question n draws by (seed, n).
    """
    chosen = {**model.experiment.parts, **parts}
    writer, mask_id = chosen["guidance"].guide(model.writer("fp32")), model.context.mask_id
    written: dict[int, str] = {}
    by_length: dict[int, list[int]] = {}
    for i, question in enumerate(questions):
        by_length.setdefault(len(question.given) + len(question.answer), []).append(i)
    for indices in by_length.values():
        z = torch.tensor([questions[i].given + [mask_id] * len(questions[i].answer) for i in indices])
        rows = torch.tensor(indices)
        filled: Tensor = writer.fill(chosen["sampler"], z, rows=rows, seed=seed, batch_size=batch_size).tokens
        for i, ids in zip(indices, filled.tolist(), strict=True):
            written[i] = answer_in(model.tokenizer, ids[len(questions[i].given) :])
    return [written[i] for i in range(len(questions))]


def shared_words(one: str, other: str) -> float:
    """Return F1 of the words of two texts, whatever their order and case, as SQuAD has it; 1 where both have none."""
    a, b = (Counter(_WORD.findall(text.lower())) for text in (one, other))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
