"""Answers to held-out questions: which are asked, how they are written, and their scores by hand."""

from types import SimpleNamespace

import attrs
import pytest
import torch

from atat_zoo.data.tokenizers.tokenizer_models import BytesModel
from atat_zoo.evaluation.held_out_text import Text, digest, held_out_text
from atat_zoo.evaluation.tasks.answers import AnswersTask, HeldOutQuestion, answers_to, questions_of, shared_words
from atat_zoo.experiment import load
from atat_zoo.generation.model import Model
from atat_zoo.registry import Zoo
from tests.evaluation.making import make_chat


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


def test_each_question_has_an_answer_of_as_many_tokens_as_the_true_one():
    asked, guided, m = [], [], 300

    class Letters:
        """A text generator of a letter for each question."""

        def fill(self, sampler, z, *, rows, **options):
            asked.append((sampler, z.tolist(), rows.tolist(), options))
            filled = torch.where(z == m, 97 + rows[:, None], z)
            filled[:, -1] = BytesModel().eos
            return SimpleNamespace(tokens=filled)

    parts = {
        "guidance": SimpleNamespace(guide=lambda text_generator: guided.append(text_generator) or Letters()),
        "sampler": "own",
    }
    model = SimpleNamespace(experiment=SimpleNamespace(parts=parts), context=SimpleNamespace(mask_id=m))
    model.tokenizer, model.text_generator = BytesModel(), lambda precision: precision
    questions = [HeldOutQuestion(0, *each) for each in (([1], [5, 6, 7]), ([1, 2], [5, 6, 7]), ([3, 4], [8, 9]))]
    options = {"seed": 7, "batch_size": 3}
    assert answers_to(model, questions, **options) == ["aa", "bb", "c"]
    assert asked == [("own", [[1, m, m, m], [3, 4, m, m]], [0, 2], options), ("own", [[1, 2, m, m, m]], [1], options)]
    assert guided == ["fp32"]
    answers_to(model, questions[:1], **options, sampler="other")
    assert asked[-1][0] == "other"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_chat(tmp_path_factory.mktemp("answers"))


def test_the_scores_are_those_of_the_answers(run, monkeypatch):
    model, asked, told = Model.from_run(run), [], []

    def answered(model, questions, **how):
        asked.append((questions, how))
        true = [model.tokenizer.decode(question.answer) for question in questions]
        return [f" {true[0]}\n", true[1].split()[0], *["?"] * (len(true) - 2)]

    monkeypatch.setattr("atat_zoo.evaluation.tasks.answers.answers_to", answered)
    asks = lambda *of, packed: held_out_text(*of, packed=packed)  # noqa: E731, whose rows may have several dialogues
    monkeypatch.setattr("atat_zoo.evaluation.held_out_text.held_out_text", asks)
    scores = AnswersTask(questions=4).measure(model, run, seed=3, progress=lambda *done: told.append(done))
    text = held_out_text(model, run, "validation", 4)
    options = {"seed": 3, "batch_size": 4, "sampler": None}
    assert (asked, told) == ([(questions_of(text), options)], [(4, 4)])
    exact, shared = scores["exact match"], scores["shared words"]
    of = digest(text.tokens, text.maskable)
    assert (exact.sums, exact.quantity, exact.of) == ((1.0, 0.0, 0.0, 0.0), "share of texts", of)
    assert (shared.sums[0], *shared.sums[2:], shared.quantity, shared.of) == (1.0, 0.0, 0.0, "F1", of)
    assert 0 < shared.sums[1] < 1
    AnswersTask(questions=4, sampler="klass").measure(model, run, seed=3)
    assert asked[1][1] == options | {"sampler": Zoo.load().spec("sampler", "klass")}


def test_a_model_that_has_learned_no_answers_has_none(run):
    chat = Model.from_run(run).experiment
    assert list(AnswersTask().check(chat)) == list(AnswersTask(sampler="klass").check(chat)) == []
    (problem,) = AnswersTask().check(load("baselines/mdlm"))
    assert (problem.key, "the task needs dialogues" in problem.text) == ("evaluation.tasks", True)
    *_, problem = AnswersTask(sampler="ancestral").check(load("baselines/autoregressive"))
    assert problem.key == "sampler"
    own, named = (AnswersTask(sampler=sampler).inputs(chat) for sampler in (None, "klass"))
    assert (own[0]["use"], named[0]["use"], own[1:]) == ("ancestral", "klass", named[1:])
