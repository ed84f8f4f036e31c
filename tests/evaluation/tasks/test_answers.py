"""Answers to held-out questions: their scores by hand, and which runs have any."""

import pytest

from atat_zoo.evaluation.answering import questions_of
from atat_zoo.evaluation.tasks.answers import AnswersTask
from atat_zoo.evaluation.text import digest, held_out_text
from atat_zoo.experiment import load
from atat_zoo.generation.model import Model
from atat_zoo.registry import Zoo
from tests import talk
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("answers")
    talk.write(root / "talk.jsonl", number=60)
    corpus = {"train": [str(root / "talk.jsonl")], "validation": [], "test": [], "document": "file"}
    corpus |= {"validation_share": 0.2, "test_share": 0.0}
    data, backbone = {"form": "chat", "rows": "document"}, {"max_length": 128}
    sampler = {"use": "ancestral", "steps": 2}
    return make_run(root, "run", "mdlm", length=120, corpus=corpus, data=data, backbone=backbone, sampler=sampler)


def test_the_scores_are_those_of_the_answers(run, monkeypatch):
    model, asked, told = Model.from_run(run), [], []

    def answered(model, questions, **how):
        asked.append((questions, how))
        true = [model.tokenizer.decode(question.answer) for question in questions]
        return [f" {true[0]}\n", true[1].split()[0], *["?"] * (len(true) - 2)]

    monkeypatch.setattr("atat_zoo.evaluation.answering.answers_to", answered)
    scores = AnswersTask(questions=4).measure(model, run, seed=3, progress=lambda *done: told.append(done))
    text = held_out_text(model, run, "validation", 4)
    questions = questions_of(text)
    assert asked == [(questions, {"seed": 3, "batch_size": 4})]
    assert told == [(4, 4)]
    exact, shared = scores["exact match"], scores["shared words"]
    assert (exact.sums, exact.quantity, exact.of) == (
        (1.0, 0.0, 0.0, 0.0),
        "share of texts",
        digest(text.tokens, text.maskable),
    )
    assert (shared.sums[0], *shared.sums[2:]) == (1.0, 0.0, 0.0)
    assert 0 < shared.sums[1] < 1
    assert (shared.quantity, shared.of) == ("F1", exact.of)
    AnswersTask(questions=4, sampler="klass").measure(model, run, seed=3)
    assert asked[1][1] == {"seed": 3, "batch_size": 4, "sampler": Zoo.load().spec("sampler", "klass")}


def test_a_model_that_has_learned_no_answers_has_none(run):
    chat = Model.from_run(run).experiment
    assert list(AnswersTask().check(chat)) == list(AnswersTask(sampler="klass").check(chat)) == []
    (problem,) = AnswersTask().check(load("baselines/mdlm"))
    assert (problem.key, "answers are those of dialogues" in problem.text) == ("evaluation.tasks", True)
    *_, problem = AnswersTask(sampler="ancestral").check(load("baselines/autoregressive"))
    assert problem.key == "sampler"
    own, named = (AnswersTask(sampler=sampler).inputs(chat) for sampler in (None, "klass"))
    assert (own[0]["use"], named[0]["use"], own[1:]) == ("ancestral", "klass", named[1:])
