"""Guided texts: the numbers by hand, what guidance does to them, and what cannot be measured."""

import hashlib
import math

import pytest
import torch

from atat_zoo.data.tokenizers import BytesTokenizer
from atat_zoo.errors import UserError
from atat_zoo.evaluation.judges import RunJudge
from atat_zoo.evaluation.tasks.controlled import ControlledTask
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.generation.model import Model
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("controlled")
    make_run(made, "judge")
    make_run(made, "run", "mdlm")
    return made


@pytest.fixture
def topic(root):
    corpus = {"use": "files", "train": [str(root / "texts" / "train.txt")], "document": "line"}
    return {"use": "naive_bayes", "words": ["gold"], "corpus": corpus, "prior": 0.5}


def task_of(topic, strength=8.0, **more):
    letter = BytesTokenizer().train(lambda: iter(())).encode("g")
    bias = {"use": "token_bias", "words": ["gold"], "tokens": letter, "strength": strength}
    return ControlledTask(guidance=bias, classifier=topic, texts=6, **more)


def test_the_numbers_are_those_of_the_texts(root, topic):
    model = Model.from_run(root / "run")
    task = task_of(topic, judge={"use": "run", "path": str(root / "judge")})
    scores = task.measure(model, root / "run", seed=2)
    assert list(scores) == [
        f"{whose}{name}" for whose in ("", "unguided ") for name in ("accuracy", "entropy", "generative perplexity")
    ]
    finds = task.classifier.build(model.tokenizer, model.experiment.data.length)
    judge = RunJudge(path=str(root / "judge")).build("cpu")
    for whose, guidance in (("", task.guidance), ("unguided ", "none")):
        written = model.sample(6, guidance=guidance, seed=2, precision="fp32")
        likely = [float(value.exp() > 0.5) for value in finds(written.sample.tokens)]
        assert scores[f"{whose}accuracy"].sums == tuple(likely)
        nats, counted = judge.nats(written.texts)
        expected = math.exp(float(nats.sum() / counted.sum()))
        assert scores[f"{whose}generative perplexity"].value == pytest.approx(expected)


def test_guidance_moves_the_guided_texts_alone(root, topic):
    """So strong a bias leaves one letter: no entropy, and texts of no other kind; at strength 0 both are alike."""
    model = Model.from_run(root / "run")
    strong, none = (task_of(topic, strength).measure(model, root / "run", seed=2) for strength in (60.0, 0.0))
    assert strong["entropy"].value < 0.3 < none["entropy"].value
    assert {key: score for key, score in strong.items() if key.startswith("unguided")} == {
        key: score for key, score in none.items() if key.startswith("unguided")
    }
    for name in ("accuracy", "entropy"):
        assert none[name] == none[f"unguided {name}"]


def test_accuracy_is_what_the_classifier_finds(root, topic, monkeypatch):
    task = task_of(topic)
    halves = iter((torch.tensor([0.9, 0.9, 0.9, 0.2, 0.2, 0.5]).log(), torch.full((6,), 0.1).log()))
    monkeypatch.setattr(type(task.classifier), "build", lambda *_: lambda tokens: next(halves))
    scores = task.measure(Model.from_run(root / "run"), root / "run", seed=2)
    assert scores["accuracy"].value == 0.5  # as probable as not is not found
    assert scores["unguided accuracy"].value == 0


def test_what_cannot_be_measured_is_refused(root, topic, atat):
    bias = "guidance = {use = 'token_bias', words = ['gold']}"
    bayes = "classifier = {use = 'naive_bayes', words = ['gold']}"
    for table, said in (
        (bias, "classifier"),
        (bayes, "guidance"),
        (f"{bias}, {bayes}, judge = {{use = 'run', path = 'nowhere'}}", "the judge: there is no finished run nowhere"),
    ):
        code, _, err = atat("eval", str(root / "run"), "--task", f"{{use = 'controlled', {table}}}")
        assert (code, said in err) == (2, True), err
    own = task_of(topic, judge={"use": "run", "path": str(root / "judge")})
    with pytest.raises(UserError, match="is the run itself, which does not judge its own text"):
        own.measure(Model.from_run(root / "judge"), root / "judge", seed=0)


def test_the_scores_depend_on_the_sampler_and_the_judge(root, topic):
    experiment, judge = Model.from_run(root / "run").experiment, {"use": "run", "path": str(root / "judge")}
    sampler, none = task_of(topic).inputs(experiment)
    assert (sampler["use"], none) == (experiment.parts["sampler"].name, None)
    weights = hashlib.sha256((root / "judge" / "model" / WEIGHTS).read_bytes()).hexdigest()
    assert task_of(topic, judge=judge).inputs(experiment) == [sampler, weights]
