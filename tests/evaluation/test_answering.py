"""Answers beside the true ones."""

from types import SimpleNamespace

import attrs
import pytest
import torch

from atat_zoo.data.tokenizers.tables import BytesModel
from atat_zoo.evaluation.answering import HeldOutQuestion, answers_to, questions_of, shared_words
from atat_zoo.evaluation.text import Text


@pytest.mark.parametrize(
    ("one", "other", "f1"),
    [("a b", "B, c.", 0.5), ("a a b", "a", 0.5), ("a", "a b c", 0.5), ("a b", "b a", 1.0), ("", "", 1.0), ("a", "", 0)],
)
def test_shared_words_are_f1_by_hand(one, other, f1):
    assert shared_words(one, other) == shared_words(other, one) == f1


def test_the_last_answer_of_each_dialogue_is_asked_for():
    tokens = torch.arange(20).view(2, 10)
    answers = torch.tensor([[0, 0, 1, 1, 0, 1, 0, 0, 1, 0], [0, 1, 0, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    text = Text(tokens=tokens, maskable=answers, counted=answers, data=None, split="validation")
    packed = attrs.evolve(text, documents=torch.tensor([[0] * 4 + [1] * 6, [0] * 10]))
    whole = (1, [10, 11, 12], [13, 14, 15])
    assert questions_of(packed) == [(0, [0, 1], [2, 3]), (0, [4, 5, 6, 7], [8]), whole]
    assert questions_of(text) == [(0, [0, 1, 2, 3, 4, 5, 6, 7], [8]), whole]


class Letters:
    """A writer of a letter for each question; it remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def fill(self, sampler, z, *, rows, **options):
        self.asked.append((sampler, z.tolist(), rows.tolist(), options))
        filled = torch.where(z == 300, 97 + rows[:, None], z)
        filled[:, -1] = BytesModel().eos
        return SimpleNamespace(tokens=filled)


def test_each_question_has_an_answer_of_as_many_tokens_as_the_true_one():
    letters, asked = Letters(), []
    guidance = SimpleNamespace(guide=lambda writer: asked.append(writer) or letters)
    parts = {"guidance": guidance, "sampler": "own"}
    model = SimpleNamespace(
        experiment=SimpleNamespace(parts=parts),
        context=SimpleNamespace(mask_id=300),
        tokenizer=BytesModel(),
        writer=lambda precision: precision,
    )
    questions = [
        HeldOutQuestion(0, [1], [5, 6, 7]),
        HeldOutQuestion(0, [1, 2], [5, 6, 7]),
        HeldOutQuestion(4, [3, 4], [8, 9]),
    ]
    assert answers_to(model, questions, seed=7, batch_size=3) == ["aa", "bb", "c"]
    options, m = {"seed": 7, "batch_size": 3}, 300
    assert letters.asked == [
        ("own", [[1, m, m, m], [3, 4, m, m]], [0, 2], options),
        ("own", [[1, 2, m, m, m]], [1], options),
    ]
    assert asked == ["fp32"]
    answers_to(model, questions[:1], seed=7, batch_size=3, sampler="other")
    assert letters.asked[-1][0] == "other"
