"""Texts beyond the training length: their numbers by hand, a judge, and what is said beside them."""

import math
from collections import Counter
from itertools import pairwise

import pytest

from atat_zoo.errors import UserError
from atat_zoo.evaluation.judges import RunJudge
from atat_zoo.evaluation.tasks.infilling import InfillingTask
from atat_zoo.evaluation.tasks.long_text import LongTextTask
from atat_zoo.evaluation.tasks.running import measure_tasks
from atat_zoo.experiment import load
from atat_zoo.generation.model import Model
from atat_zoo.registry import Zoo
from atat_zoo.system.machine import lacking
from tests.evaluation.making import make_run

SAMPLER = {"use": "semi_autoregressive", "size": 4, "within": {"use": "ancestral", "steps": 2}}
FEW = {"length": 40, "texts": 3, "sampler": SAMPLER}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("long-text")
    make_run(made, "judge")
    make_run(made, "run", "mdlm")
    return made


def test_the_numbers_are_those_of_the_texts(root):
    """By hand, of texts of more tokens than the 16 that the model has learned."""
    model = Model.from_run(root / "run")
    task = LongTextTask(**FEW, judge={"use": "run", "path": str(root / "judge")})
    scores = task.measure(model, root / "run", seed=2)
    written = model.sample(3, sampler=SAMPLER, length=40, seed=2, precision="fp32")
    special = {model.tokenizer.bos, model.tokenizer.eos}
    entropies, distinct, every = [], [], []
    for ids in written.sample.tokens.tolist():
        plain = [i for i in ids if i not in special]
        entropies.append(-sum(n / len(plain) * math.log(n / len(plain)) for n in Counter(plain).values()))
        pairs = [pair for pair in pairwise(ids) if not special & set(pair)]
        distinct.append(len(set(pairs)))
        every.append(len(pairs))
    assert scores["entropy"].sums == pytest.approx(entropies)
    assert (scores["distinct-2"].sums, scores["distinct-2"].weights) == (tuple(distinct), tuple(every))
    nats, counted = RunJudge(path=str(root / "judge")).build("cpu").nats(written.texts)
    assert scores["generative perplexity"].value == pytest.approx(math.exp(float(nats.sum() / counted.sum())))
    assert "tokens per second" in scores["speed"]


def test_n_grams_are_of_as_many_tokens_as_asked_for(root):
    scores = LongTextTask(**FEW, n=3).measure(Model.from_run(root / "run"), root / "run", seed=2)
    assert "distinct-3" in scores
    assert all(n <= 38 for n in scores["distinct-3"].weights)


def test_how_fast_it_writes_is_a_note_and_no_score(root):
    (result,) = measure_tasks([LongTextTask(**FEW)], Model.from_run(root / "run"), root / "run", seed=2)
    assert list(result.scores) == ["entropy", "distinct-2"]
    assert "tokens per second" in result.notes[0]


def test_a_sampler_that_the_model_cannot_serve_is_refused():
    """By what the objective says of it, as for a run's own."""
    experiment = load("baselines/autoregressive")
    for task in (LongTextTask(length=8, sampler="ancestral"), InfillingTask(sampler="ancestral")):
        (problem,) = task.check(experiment)
        assert problem.key == "sampler"
    assert list(LongTextTask(length=8, sampler="left_to_right").check(experiment)) == []
    length = experiment.data.length
    assert [
        each.key for each in LongTextTask(length=length + 1, sampler="first_hitting").check(load("baselines/mdlm"))
    ] == ["evaluation.tasks"]
    assert not list(LongTextTask(length=length, sampler="first_hitting").check(load("baselines/mdlm")))


def test_a_judge_without_its_package_is_missed_beforehand(monkeypatch):
    judge = {"use": "huggingface", "model": "gpt2"}
    assert list(LongTextTask(judge=judge).absent()) == lacking([Zoo.load().spec("judge", judge)])
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda module: None)
    (sentence,) = LongTextTask(judge=judge).absent()
    assert "huggingface needs the package transformers" in sentence


def test_what_cannot_be_written_or_judged_is_refused(root, atat):
    run = str(root / "run")
    for table, said in (
        ("length = 40, sampler = 'ancestral'", "'ancestral' writes at most the 16 tokens"),
        ("judge = {use = 'run', path = 'nowhere'}", "the judge: there is no finished run nowhere"),
        ("length = 2, n = 3", "n = 3: a text of 2 tokens has no n-grams of so many"),
    ):
        code, _, err = atat("eval", run, "--task", f"{{use = 'long_text', {table}}}")
        assert (code, said in err) == (2, True), err
    own = LongTextTask(**FEW, judge={"use": "run", "path": str(root / "judge")})
    with pytest.raises(UserError, match="is the run itself, which does not judge its own text"):
        own.measure(Model.from_run(root / "judge"), root / "judge", seed=0)
