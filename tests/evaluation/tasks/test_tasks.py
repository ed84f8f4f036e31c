"""Tasks: their scores, measured once for the same model, after a training, and refused in a sentence."""

import json
import math
import shutil

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo
from atat_zoo.errors import NotKept, UserError
from atat_zoo.evaluation.results.intervals import paired
from atat_zoo.evaluation.results.store import tables
from atat_zoo.evaluation.results.tasks import Score, difference, task_results
from atat_zoo.evaluation.tasks import require, title
from atat_zoo.evaluation.tasks.held_out import PricesTask
from atat_zoo.evaluation.tasks.infilling import InfillingTask
from atat_zoo.evaluation.tasks.running import measure_tasks
from atat_zoo.evaluation.tasks.zero_shot import ZeroShotTask
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.model import Model
from tests.evaluation.making import make_run

FEW = InfillingTask(gap=3, texts=6)
NUMBERS = st.lists(st.tuples(st.floats(-9, 9, width=16), st.integers(1, 9)), min_size=2, max_size=9)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("tasks")
    make_run(made, "run", "mdlm", sampler={"use": "ancestral", "steps": 4})
    return made


@given(NUMBERS)
def test_a_score_is_a_ratio_or_its_exponential(numbers):
    sums, weights = (list(each) for each in zip(*numbers, strict=True))
    plain = Score.over("x", sums, weights)
    ratio = sum(sums) / sum(weights)
    assert plain.value == pytest.approx(ratio)
    assert (plain.items, plain.sums) == (len(sums), ())
    grown = Score.over("x", sums, weights, exponential=True)
    assert (grown.value, grown.stderr) == pytest.approx((math.exp(ratio), math.exp(ratio) * plain.stderr))
    mean = Score.over("x", sums)
    assert mean.value == pytest.approx(sum(sums) / len(sums), abs=1e-12)
    a = torch.tensor(sums, dtype=torch.float64)
    assert mean.stderr == pytest.approx(float(a.std()) / len(sums) ** 0.5, abs=1e-12)


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


def test_a_title_names_what_differs_from_the_defaults():
    assert title(InfillingTask()) == "infilling"
    assert title(InfillingTask(gap=3, sampler="ancestral")) == "infilling (gap = 3, sampler = ancestral)"
    assert title(ZeroShotTask(corpora=("ptb",))) == "zero_shot (corpora = ['ptb'])"
    assert title(PricesTask(samplers=["klass", "margin"])) == "prices (samplers = ['klass', 'margin'])"


def test_what_is_written_depends_on_the_sampler_that_is_named(root):
    experiment = Model.from_run(root / "run").experiment
    own, named = (InfillingTask(sampler=sampler).inputs(experiment)[0] for sampler in (None, "klass"))
    assert (own["use"], own["steps"], named["use"]) == ("ancestral", 4, "klass")


def test_what_is_measured_once_is_read(root, monkeypatch):
    monkeypatch.chdir(root)
    run, times = root / "run", []
    measure = InfillingTask.measure

    def counted(self, *words, **how):
        times.append(self)
        return measure(self, *words, **how)

    monkeypatch.setattr(InfillingTask, "measure", counted)
    model = Model.from_run(run)
    first, again = (measure_tasks([FEW], model, run, seed=1) for _ in range(2))
    assert len(times) == 1
    assert first == again
    assert first == [result for result in task_results(tables(RunFolder(run))) if result.seed == 1]
    measure_tasks([FEW], model, run, seed=2)
    measure_tasks([attrs.evolve(FEW, gap=4)], model, run, seed=1)
    other_sampler = Zoo.load().spec("sampler", {"use": "ancestral", "steps": 2})
    experiment = attrs.evolve(model.experiment, parts={**model.experiment.parts, "sampler": other_sampler})
    measure_tasks([FEW], attrs.evolve(model, experiment=experiment), run, seed=1)
    assert len(times) == 4
    assert len(list((run / "evaluations").glob("task-infilling-*.json"))) == 4
    other = root / "other-weights"
    shutil.copytree(run, other)
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    model.save(other / "model")
    measure_tasks([FEW], Model.from_run(other), other, seed=1)
    assert len(times) == 5


def test_a_result_that_cannot_be_kept_is_returned(root, monkeypatch):
    monkeypatch.chdir(root)
    run = root / "read-only"
    shutil.copytree(root / "run", run, ignore=shutil.ignore_patterns("evaluations"))
    (run / "evaluations").touch()
    with pytest.warns(NotKept, match="this result is not kept in the run"):
        (result,) = measure_tasks([FEW], Model.from_run(run), run, seed=5)
    assert result == measure_tasks([FEW], Model.from_run(root / "run"), root / "run", seed=5)[0]


def test_what_a_task_lacks_is_said_with_its_name(root):
    experiment = Model.from_run(root / "run").experiment
    with pytest.raises(UserError) as said:
        require([InfillingTask(gap=20), ZeroShotTask(corpora=("ptb",), root="nowhere")], experiment)
    first, second = str(said.value).splitlines()
    assert first.startswith("task infilling (gap = 20): a gap of 20 tokens leaves no text")
    assert second.startswith(
        "task zero_shot (corpora = ['ptb'], root = nowhere): PTB: there is no file nowhere/corpora"
    )


def test_mistakes_on_the_command_line(root, atat, monkeypatch):
    monkeypatch.chdir(root)
    few = "{use = 'infilling', gap = 3, texts = 6}"
    for words, said in (
        (["--task", "infiling"], "did you mean 'infilling'"),
        (["--task", few, "--split", "test"], "--split: is of the bound, and --task measures a task"),
        (["--task", few, "--corpus", "ptb"], "--corpus: is of the bound"),
        (["--task", few, "--metric", "brier_score"], "--metric: is of the bound"),
        (["--task", few, "sampler.steps=2"], "sampler.steps=2: is of the bound"),
    ):
        code, out, err = atat("eval", "run", *words)
        assert (code, out, err.count("\n"), said in err) == (2, "", 1, True), err
    code, out, err = atat(
        "eval", "run", "--task", few, "--task", "{use = 'infilling', texts = 4}", "--seed", "3", "--json"
    )
    assert (code, err) == (0, "")
    titles = [result["task"] for result in json.loads(out)["tasks"]]
    assert titles == ["infilling (gap = 3, texts = 6)", "infilling (texts = 4)"]
    assert all("sums" not in score for result in json.loads(out)["tasks"] for score in result["scores"].values())
    code, out, _ = atat("eval", "run", "--task", few, "--seed", "3")
    assert out.splitlines()[0] == "task infilling (gap = 3, texts = 6), seed 3; step 3, final weights"
    assert [line.split("  ")[0] for line in out.splitlines()[2:]] == ["exact match", "price", "gain", "better"]


def test_an_experiment_names_no_task_twice():
    EvaluationSpec(tasks=("infilling", {"use": "infilling", "gap": 3}))
    with pytest.raises(ValueError, match="tasks has 'infilling' twice"):
        EvaluationSpec(tasks=("infilling", "infilling"))


@pytest.mark.slow
def test_tasks_of_an_experiment_are_measured_after_its_training(tiny, atat, monkeypatch):
    words = ["evaluation.tasks=[{use='infilling', gap=3, texts=5}]", "train.steps=2", "--out", "with-tasks"]
    said = tiny.atat("train", str(tiny.path), *words).stdout
    assert "task infilling (gap = 3, texts = 5), seed" in said
    run = tiny.root / "with-tasks"
    (result,) = task_results(tables(RunFolder(run)))
    assert (result.step, result.scores["price"].items) == (2, 5)
    monkeypatch.chdir(tiny.root)
    again = json.loads(atat("eval", str(run), "--task", "{use='infilling', gap=3, texts=5}", "--json")[1])
    assert again["tasks"][0] == json.loads(json.dumps(result.to_table()))
    assert len(list((run / "evaluations").glob("task-*"))) == 1
    lacking = ["evaluation.tasks=['zero_shot']", "train.steps=2", "--out", "without"]
    code, _, err = atat("train", str(tiny.path), *lacking)
    assert (code, "task zero_shot: PTB: there is no file" in err) == (2, True)
    assert not RunFolder(tiny.root / "without").exists
    assert "not here: PTB: there is no file" in atat("check", str(tiny.path), "evaluation.tasks=['zero_shot']")[1]


def test_the_progress_of_a_task_is_told_with_its_title(root):
    told = []
    task = attrs.evolve(FEW, texts=5)
    measure_tasks([task], Model.from_run(root / "run"), root / "run", seed=9, progress=lambda *done: told.append(done))
    assert told[-1] == ("infilling (gap = 3, texts = 5)", 5, 5)
