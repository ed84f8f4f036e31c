"""A small package adds a metric and a task: both are listed, checked, evaluated, compared, studied and in reports."""

import json
import os

import pytest

from tests.installing import alone, install
from tests.studies import quick
from tests.tiny import Tiny

__all__ = ["alone", "install"]

PLUGIN = '''
from atat_zoo.evaluation.metrics import Metric
from atat_zoo.registry import component, hookimpl, param
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task

CONTRACT = 2

@component
class Vowels(Metric):
    """The share of the characters of a text that are vowels."""
    name, summary, reads = "vowels", "share of the characters that are vowels", "texts"
    of: str = param("aeiou", help="the vowels")

    def build(self):
        from atat_zoo.evaluation.metric_states import TextMean
        return TextMean(lambda text, pieces: (sum(map(text.count, self.of)), len(text)))

@component
class Written(Task):
    """The share of the characters of written texts that are vowels."""
    name, summary = "written", "share of the written characters that are vowels"
    of: str = param("aeiou", help="the vowels")

    def measure(self, model, run, *, seed, progress=None):
        texts = model.sample(4, seed=seed, precision="fp32").texts
        return {"share": Score.over("share", [sum(map(text.count, self.of)) / 9 for text in texts], of="four texts")}

@hookimpl
def atat_zoo_metric():
    return [Vowels]

@hookimpl
def atat_zoo_task():
    return [Written]
'''
STUDY = """
folder = "study"
baseline = "one"
seeds = [1]
overrides = ["train.steps=1", "evaluation.sequences=4"]
arms.one.experiment = "tiny.toml"
arms.two = { experiment = "tiny.toml", overrides = ["optimizer.learning_rate=1e-4"] }
evaluation = { sequences = 4, metrics = ["vowels"], tasks = ["written"] }
"""
# They learn so fast that two steps make them write different texts.
WORDS = ["train.steps=2", "train.log_every=2", "train.evaluate_every=1", "evaluation.samples=0"]
WORDS += ["optimizer.learning_rate=0.3", "schedule.warmup_steps=0"]
WORDS += ['evaluation.metrics=["vowels"]', 'evaluation.tasks=["written"]']


@pytest.mark.slow
def test_a_metric_and_a_task_of_a_plugin_are_everywhere(tmp_path, install, monkeypatch, atat):
    install("vowels", PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)

    def command(*words):
        code, out, err = atat(*words)
        assert code == 0, out + err
        return out

    tiny = Tiny(tmp_path)
    assert "share of the written characters that are vowels" in command("zoo", "list")
    assert "fails the check" not in command("zoo", "check", "atat-zoo-vowels")
    for seed, run in enumerate(("one", "two"), 3):
        said = command("train", str(tiny.path), *WORDS, f"seed={seed}", "--out", run)
        assert f"task written, seed {seed}" in said
    files = sorted((tmp_path / "one" / "evaluations").glob("[!t]*.json"))
    metrics = [json.loads(file.read_text())["metrics"]["vowels"] for file in files]
    assert len(metrics) == 3
    assert all(0 <= each["value"] <= 1 for each in metrics)
    lines = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("validation/vowels") for line in lines] == [metrics[1]["value"], None]  # the end has no line
    (result,) = json.loads(command("eval", "one", "--task", "written", "--json"))["tasks"]
    assert result["scores"]["share"]["items"] == 4
    assert len(list((tmp_path / "one" / "evaluations").glob("task-written-*.json"))) == 1
    one, two = json.loads(command("compare", "one", "two", "--json"))["runs"]
    assert all(0 <= run["metrics"]["vowels"]["value"] <= 1 for run in (one, two))
    assert one["metrics"]["vowels"]["value"] == pytest.approx(metrics[-1]["value"])
    _, two = json.loads(command("compare", "one", "two", "--task", "written", "--json"))["runs"]
    difference = two["tasks"][0]["scores"]["share"]["difference"]
    assert difference["low"] < difference["value"] < difference["high"]
    said = quick.study(["--jobs", "1"], tmp_path).stdout
    assert "| arm | vowels |" in said
    assert "## Task written" in said
    (task,) = json.loads((tmp_path / "study" / "study.json").read_text())["tasks"]
    assert [row["arm"] for row in task["scores"][0]["rows"]] == ["one", "two"]
    command("report", "one", "two", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '"columns":["metric","one","two"],"rows":[["vowels",' in page
    assert '"columns":["score","quantity","items","one","two"],"rows":[["share","share","4",' in page
    command("report", "study", "--out", "study.html")
    page = (tmp_path / "study.html").read_text()
    assert '"columns":["arm","vowels"' in page
    assert '"title":"Task written"' in page
