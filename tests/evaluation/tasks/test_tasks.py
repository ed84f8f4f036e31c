"""Tasks: their scores, measured once for the same model, after a training, and refused in a sentence."""

import json
import math
import shutil
from types import SimpleNamespace

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo
from atat_zoo.evaluation.results.intervals import paired
from atat_zoo.evaluation.results.store import tables
from atat_zoo.evaluation.results.task_results import Score, difference, task_results
from atat_zoo.evaluation.tasks import measure_tasks, require, title
from atat_zoo.evaluation.tasks.held_out import PricesTask
from atat_zoo.evaluation.tasks.infilling import InfillingTask
from atat_zoo.evaluation.tasks.protocol import ProtocolTask
from atat_zoo.evaluation.tasks.zero_shot import ZeroShotTask
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.model import Model
from atat_zoo.system.errors import UnsavedNote, UserError
from tests.evaluation.making import runs

FEW = InfillingTask(gap=3, texts=6)
NUMBERS = st.lists(st.tuples(st.floats(-9, 9, width=16), st.integers(1, 9)), min_size=2, max_size=9)
root = runs(run={"objective": "mdlm", "sampler": {"use": "ancestral", "steps": 4}})


@given(NUMBERS)
def test_a_score_is_a_ratio_or_its_exponential(numbers):
    sums, weights = (list(each) for each in zip(*numbers, strict=True))
    plain, ratio = Score.over("x", sums, weights), sum(sums) / sum(weights)
    assert plain.value == pytest.approx(ratio)
    assert (plain.items, plain.sums) == (len(sums), ())
    grown, mean = Score.over("x", sums, weights, exponential=True), Score.over("x", sums)
    assert (grown.value, grown.stderr) == pytest.approx((math.exp(ratio), math.exp(ratio) * plain.stderr))
    error = float(torch.tensor(sums, dtype=torch.float64).std()) / len(sums) ** 0.5
    assert (mean.value, mean.stderr) == pytest.approx((sum(sums) / len(sums), error), abs=1e-12)


@given(NUMBERS, st.floats(-2, 2, width=16))
def test_scores_of_the_same_items_are_compared_item_by_item(numbers, more):
    sums, weights = (torch.tensor(each, dtype=torch.float64) for each in zip(*numbers, strict=True))
    one, other = (Score.over("x", each, weights, of="these") for each in (sums + more * weights, sums))
    found = one.minus(other)
    assert (found.value, found.low, found.high) == pytest.approx((more, more, more), abs=1e-9)
    assert found == paired(sums + more * weights, sums, weights)
    others = {"of": "those"}, {"quantity": "y"}, {"weights": (99.0, *other.weights[1:])}, {"of": ""}
    assert [one.minus(attrs.evolve(other, **change)) for change in others] == [None] * 4
    assert difference(one, attrs.evolve(other, of="those")) == "—"
    infinite = attrs.evolve(one, sums=(float("inf"), *one.sums[1:]))
    assert (infinite.minus(other), one.minus(infinite)) == (None, None)


def test_a_title_names_what_differs_from_the_defaults():
    assert title(InfillingTask()) == "infilling"
    assert title(InfillingTask(gap=3, sampler="ancestral")) == "infilling (gap = 3, sampler = ancestral)"
    assert title(ZeroShotTask(corpora=("ptb",))) == "zero_shot (corpora = ['ptb'])"
    assert title(PricesTask(samplers=["klass", "margin"])) == "prices (samplers = ['klass', 'margin'])"


def test_a_protocol_of_a_model_of_dialogues_is_refused_where_tasks_are_named():
    problem = next(ProtocolTask().check(SimpleNamespace(data=SimpleNamespace(format="chat"))))
    assert str(problem).startswith("evaluation.tasks: protocols are for running text")


@pytest.mark.slow
def test_what_is_measured_once_is_read(root, monkeypatch):
    run = shutil.copytree(root / "run", root / "read", ignore=shutil.ignore_patterns("evaluations"))
    times, told = [], []
    measure = InfillingTask.measure
    monkeypatch.setattr(
        InfillingTask, "measure", lambda self, *_, **how: times.append(self) or measure(self, *_, **how)
    )
    model = Model.from_run(run)
    first, again = (measure_tasks([FEW], model, run, seed=1, progress=lambda *d: told.append(d)) for _ in range(2))
    assert len(times) == 1
    assert first == again == [result for result in task_results(tables(RunFolder(run))) if result.seed == 1]
    assert first[0].settings.keys() == {"task", "inputs", "seed", "weights"}
    assert told[-1] == ("infilling (gap = 3, texts = 6)", 6, 6)
    # Measured anew with another seed, parameter or sampler, and of other weights.
    measure_tasks([FEW], model, run, seed=2)
    measure_tasks([attrs.evolve(FEW, gap=4)], model, run, seed=1)
    parts = model.experiment.parts | {"sampler": Zoo.load().spec("sampler", {"use": "ancestral", "steps": 2})}
    other = attrs.evolve(model, experiment=attrs.evolve(model.experiment, parts=parts))
    measure_tasks([FEW], other, run, seed=1)
    own, named, changed = (
        task.inputs(made.experiment)[0]
        for task, made in ((FEW, model), (attrs.evolve(FEW, sampler="klass"), model), (FEW, other))
    )
    assert (own["steps"], named["use"], changed["steps"]) == (4, "klass", 2)
    assert len(times) == len(list((run / "evaluations").glob("task-infilling-*.json"))) == 4
    copied = shutil.copytree(run, root / "other-weights")
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    model.save(copied / "model")
    measure_tasks([FEW], Model.from_run(copied), copied, seed=1)
    assert len(times) == 5


def test_a_result_that_cannot_be_kept_is_returned(root):
    run = shutil.copytree(root / "run", root / "read-only", ignore=shutil.ignore_patterns("evaluations"))
    (run / "evaluations").touch()
    with pytest.warns(UnsavedNote, match="this result is not saved in the run"):
        found = measure_tasks([FEW], Model.from_run(run), run, seed=5)
    assert found == measure_tasks([FEW], Model.from_run(root / "run"), root / "run", seed=5)


def test_what_a_task_lacks_is_said_with_its_name(root):
    tasks = [InfillingTask(gap=20), ZeroShotTask(corpora=("ptb",), root="nowhere")]
    with pytest.raises(UserError) as said:
        require(tasks, Model.from_run(root / "run").experiment)
    first, second = str(said.value).splitlines()
    assert first.startswith("task infilling (gap = 20): a gap of 20 tokens does not leave a token on each side")
    assert second.startswith("task zero_shot (corpora = ['ptb'], root = nowhere): PTB: file not found: nowhere/corpor")
    with pytest.raises(ValueError, match="tasks has 'infilling' twice"):
        EvaluationSpec(tasks=("infilling", {"use": "infilling", "gap": 3}, "infilling"))


def test_tasks_on_the_command_line(root, atat, monkeypatch):
    monkeypatch.chdir(root)
    few = "{use = 'infilling', gap = 3, texts = 6}"
    for words, said in (
        (["--task", "infiling"], "did you mean 'infilling'"),
        (["--task", few, "--split", "test"], "--split does not apply to --task"),
        (["--task", few, "--corpus", "ptb"], "--corpus does not apply to --task"),
        (["--task", few, "--metric", "brier_score"], "--metric does not apply to --task"),
        (["--task", few, "sampler.steps=2"], "sampler.steps=2 does not apply to --task"),
    ):
        code, out, err = atat("eval", "run", *words)
        assert (code, out, err.count("\n"), said in err) == (2, "", 1, True), err
    words = ["eval", "run", "--task", few, "--seed", "3"]
    code, out, err = atat(*words, "--task", "{use = 'infilling', texts = 4}", "--json")
    assert (code, err) == (0, "")
    tasks = json.loads(out)["tasks"]
    assert [task["task"] for task in tasks] == ["infilling (gap = 3, texts = 6)", "infilling (texts = 4)"]
    assert all("sums" not in score for task in tasks for score in task["scores"].values())
    first, _, *lines = atat(*words)[1].splitlines()
    assert first == "task infilling (gap = 3, texts = 6), seed 3; step 3, final weights"
    assert [line.split("  ")[0] for line in lines] == ["exact match", "price", "gain", "better"]


@pytest.mark.slow
def test_tasks_of_an_experiment_are_measured_after_its_training(tiny, atat, monkeypatch):
    words = ["evaluation.tasks=[{use='infilling', gap=3, texts=5}]", "train.steps=2", "--out", "with-tasks"]
    assert "task infilling (gap = 3, texts = 5), seed" in tiny.atat("train", str(tiny.path), *words).stdout
    run = tiny.root / "with-tasks"
    (result,) = task_results(tables(RunFolder(run)))
    assert (result.step, result.scores["price"].items) == (2, 5)
    monkeypatch.chdir(tiny.root)
    again = json.loads(atat("eval", str(run), "--task", "{use='infilling', gap=3, texts=5}", "--json")[1])
    assert again["tasks"][0] == json.loads(json.dumps(result.to_table()))
    assert len(list((run / "evaluations").glob("task-*"))) == 1
    lacking = ["evaluation.tasks=['zero_shot']", "train.steps=2", "--out", "without"]
    code, _, err = atat("train", str(tiny.path), *lacking)
    assert (code, "task zero_shot: PTB: file not found:" in err) == (2, True)
    assert not RunFolder(tiny.root / "without").exists
    assert "missing: PTB: file not found:" in atat("check", str(tiny.path), "evaluation.tasks=['zero_shot']")[1]
