"""Trainings on dialogues: they lower the bound on held-out answers, continue exactly, and answer."""

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from atat_zoo.cli import atat
from atat_zoo.cli.train_command import samples_of
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import evaluate_run, measure
from atat_zoo.evaluation.results.intervals import paired
from atat_zoo.evaluation.run_comparison import measure_runs
from atat_zoo.evaluation.tasks import answers
from atat_zoo.evaluation.tasks.answers import AnswersTask, questions_of, shared_words
from atat_zoo.experiment import load
from atat_zoo.generation.layout import answer_text
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train
from atat_zoo.training.initial_weights import InitialWeights
from tests import talk

pytestmark = pytest.mark.slow

SHARED = """
seed = 3
backbone = {{ layers = 2, width = 48, heads = 2 }}
tokenizer = {{ use = "bpe", vocabulary_size = 320 }}
objective.weight = "simple"
data = {{ root = "{root}/shards", lanes = 2, length = 64 }}
train = {{ batch_size = 16, precision = "fp32", log_every = 5, save_every = 1000 }}
optimizer.learning_rate = 3e-3
evaluation = {{ sequences = 0, mask_samples = 8, samples = 2 }}
sampler.use = "entropy_bounded"
"""
SOURCE = """
extends = "shared.toml"
train.steps = 10
corpus = {{ use = "files", train = ["{root}/text.txt"], document = "line" }}
"""
TUNED = """
extends = "shared.toml"
init_from = "{root}/source"
train.steps = 100
corpus = {{ use = "files", train = ["{root}/talk.jsonl"], validation_share = 0.1, test_share = 0.0 }}
data.format = "chat"
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with 200 dialogues, and a run that has read what they say as running text."""
    root = tmp_path_factory.mktemp("chat")
    talk.write(root / "talk.jsonl")
    (root / "text.txt").write_text("\n".join(json.dumps(each) for each in talk.dialogues(200, seed=1)))
    for name, text in (("shared", SHARED), ("source", SOURCE), ("tuned", TUNED)):
        (root / f"{name}.toml").write_text(text.format(root=root))
    train(load(str(root / "source.toml")), root / "source")
    return root


@pytest.fixture(scope="module", params=["packed", "document"])
def tuned(root, request):
    """Return a run that was tuned on the dialogues."""
    experiment = load(str(root / "tuned.toml"), [f"data.packing={request.param}"])
    return train(experiment, root / request.param).folder.path


def after_and_before(run):
    """Return a tuned model, its held-out answers, and their nats under it and under the weights that it began with."""
    model = Model.from_run(run)
    spec, form = model.experiment.evaluation, {"form": "chat", "seed": 5}
    text = text_of(model, run, spec, packed=True)
    before = assemble(model.experiment, model.context)
    InitialWeights.from_experiment(model.experiment).load_into(before)
    measured = [
        measure(module, text.tokens, text.maskable, spec, documents=text.documents, **form)
        for module in (model.module, before)
    ]
    return model, text, [each.contribution["answers"].sum(1) for each in measured]


def test_tuning_lowers_the_bound_on_held_out_answers(tuned):
    model, text, nats = after_and_before(tuned)
    per = text.counted
    answers = sum(
        len(question.answer[: question.answer.index(model.tokenizer.eos) + 1]) for question in questions_of(text)
    )
    assert per.sum() == answers  # of dialogues with one answer each, with its end, and without what fills a row
    difference = paired(*nats, per.sum(1))
    assert difference.high < -1, difference  # nats per token of an answer


def test_the_evaluation_is_of_answers_and_is_called_so(tuned):
    model = Model.from_run(tuned)
    evaluation = evaluate_run(model, tuned, model.experiment.evaluation, seed=3)
    assert evaluation.form == "chat"
    assert list(evaluation.bounds) == ["answers"]
    assert evaluation.nelbo is None
    assert "perplexity" not in evaluation.to_table()
    assert "answers bound" in evaluation.sentence()
    assert evaluation.key.startswith("validation-answers-exact_k-")
    (row,) = measure_runs([tuned], model.experiment.evaluation, seed=3)
    assert row.bounds()["answers"] == evaluation.bounds["answers"]
    ran = CliRunner().invoke(atat, ["eval", str(tuned)], catch_exceptions=False)
    assert "validation assistant messages, given the rest of the dialogue" in ran.output
    assert "answers bound" in ran.output
    assert "perplexity" not in ran.output.replace("unigram perplexity", "")


def test_a_run_answers(tuned):
    model = Model.from_run(tuned)
    assert [each.count("assistant\n") for each in samples_of(model, tuned, 2)] == [1, 1]
    asked = "What colour is the red ship?"
    same = model.sample(chat=[{"role": "user", "content": asked}], length=40, seed=1)
    words = ["sample", str(tuned), "--chat", asked, "--length", "40", "--seed", "1", "--json"]
    said = CliRunner().invoke(atat, words, catch_exceptions=False)
    assert json.loads(said.output)["texts"] == same.texts
    assert "user" not in same.texts[0]
    assert asked not in same.texts[0]
    row = same.sample.tokens[0].tolist()
    head = [model.tokenizer.bos, *model.tokenizer.encode("user\n"), *model.tokenizer.encode(asked), model.tokenizer.eos]
    assert row[: len(head)] == head
    assert model.sample(chat=asked, prompt="The ship", length=40, seed=1).texts[0].startswith("The ship")
    with pytest.raises(UserError, match=r"chat: message 1 has the unknown role 'usr'; did you mean 'user'\?"):
        model.sample(chat=[{"role": "usr", "content": "x"}])


def test_answers_are_a_task(tuned, monkeypatch):
    arguments = ["eval", str(tuned), "--task", "answers", "--json"]
    found = json.loads(CliRunner().invoke(atat, arguments, catch_exceptions=False).output)
    scores = found["tasks"][0]["scores"]
    assert set(scores) == {"exact match", "shared words"}
    assert scores["exact match"]["items"] == 20
    # What the model answers is in part what is true, and every other answer that is true is half.
    assert 0 < scores["shared words"]["value"] < 1
    model, written = Model.from_run(tuned), []

    def some(model, questions, **how):
        true = [answer_text(model.tokenizer, question.answer) for question in questions]
        written.extend(f" {answer}\n" if i % 2 else "nothing" for i, answer in enumerate(true))
        return written

    monkeypatch.setattr(answers, "answers_to", some)
    scores = AnswersTask().measure(model, tuned, seed=1)
    assert len(set(written)) > 5
    assert [scores[name].value for name in ("exact match", "shared words")] == [0.5, 0.5]


def test_what_needs_a_dialogue_in_each_row_says_so(root):
    packed = root / "packed"
    if not (packed / "model").exists():
        train(load(str(root / "tuned.toml"), ["data.packing=packed", "train.steps=1"]), packed)
    for words in (["--bound", "policy"], ["--task", "infilling"]):
        said = CliRunner().invoke(atat, ["eval", str(packed), *words]).exception
        assert isinstance(said, UserError)
        assert 'train with data.packing = "document"' in str(said)
    said = CliRunner().invoke(atat, ["sample", str(root / "source"), "--chat", "Who?"]).exception
    assert isinstance(said, UserError)
    assert "was not trained on dialogues" in str(said)


@pytest.mark.parametrize("rows", ["packed", "document"])
def test_a_training_continues_bit_for_bit(root, tmp_path, rows):
    given = [f"data.packing={rows}", "evaluation.samples=0", "schedule.use=constant"]
    train(load(str(root / "tuned.toml"), [*given, "train.steps=6"]), tmp_path / "whole")
    train(load(str(root / "tuned.toml"), [*given, "train.steps=3"]), tmp_path / "parts")
    resume(tmp_path / "parts", overrides=["train.steps=6"])
    one, other = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "parts"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


SAMPLERS = {
    "set_causal": '{use="strided"}',
    "strided_causal": '{use="strided", stride=16}',
    "block": '{use="semi_autoregressive"}',
    "adaptive": '{use="ancestral"}',
    "autoregressive": '{use="left_to_right"}',
}


@pytest.mark.parametrize("objective", SAMPLERS)
def test_other_objectives_learn_answers(root, tmp_path, objective):
    words = [f"objective={{use='{objective}'}}", f"sampler={SAMPLERS[objective]}", "data.packing=document"]
    words += ["train.steps=12", "train.evaluate_every=12", "evaluation.mask_samples=2", "evaluation.samples=1"]
    result = train(load(str(root / "tuned.toml"), words), tmp_path / "run")
    _, _, (after, before) = after_and_before(result.folder.path)
    assert after.sum() < before.sum()
    assert "answers" in result.evaluation.bounds


def test_shared_words():
    assert shared_words("The ship is red.", "the SHIP is blue") == pytest.approx(0.75)
    assert (shared_words("", "a"), shared_words("", " ")) == (0.0, 1.0)
