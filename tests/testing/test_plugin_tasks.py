"""A package of twenty lines adds a task: it is listed, checked, measured, compared, studied, and in both reports."""

import json

import pytest

from tests.testing.twenty_lines import installed

PLUGIN = '''
from atat_zoo.registry import component, hookimpl, param
from atat_zoo.results.tasks import Score
from atat_zoo.tasks import Task

CONTRACT = 2

@component
class Vowels(Task):
    """The share of the characters of written texts that are vowels."""
    name, summary = "vowels", "share of the written characters that are vowels"
    of: str = param("aeiou", help="the vowels")

    def measure(self, model, run, *, seed, progress=None):
        texts = model.sample(4, seed=seed, precision="fp32").texts
        return {"share": Score.over("share", [sum(map(text.count, self.of)) / 9 for text in texts], of="four texts")}

@hookimpl
def atat_zoo_task():
    return [Vowels]
'''


@pytest.mark.slow
def test_a_task_of_a_plugin_is_everywhere(tmp_path):
    tiny, atat = installed(tmp_path, PLUGIN, "tasks")
    assert "share of the written characters that are vowels" in atat("zoo", "list", "task")
    assert "breaks" not in atat("zoo", "check", "atat-zoo-vowels")
    for seed, run in enumerate(("one", "two"), 3):
        # They learn so fast that two steps make them write different texts.
        words = [
            "train.steps=2",
            "optimizer.learning_rate=0.3",
            "schedule.warmup_steps=0",
            "evaluation.samples=0",
            'evaluation.tasks=["vowels"]',
            f"seed={seed}",
        ]
        assert f"task vowels, seed {seed}" in atat("train", str(tiny.path), *words, "--out", run)
    (result,) = json.loads(atat("eval", "one", "--task", "vowels", "--json"))["tasks"]
    assert result["scores"]["share"]["items"] == 4
    assert len(list((tmp_path / "one" / "evaluations").glob("task-vowels-*.json"))) == 1
    compared = json.loads(atat("compare", "one", "two", "--task", "vowels", "--json"))["runs"][1]
    difference = compared["tasks"][0]["scores"]["share"]["difference"]
    assert difference["low"] < difference["value"] < difference["high"]
    assert "## Task vowels" in atat("study", "study.toml", "--jobs", "1")
    (task,) = json.loads((tmp_path / "study" / "study.json").read_text())["tasks"]
    assert [row["arm"] for row in task["scores"][0]["rows"]] == ["one", "two"]
    atat("report", "one", "two", "--out", "page.html")
    assert (
        '"columns":["score","quantity","items","one","two"],"rows":[["share","share","4",'
        in (tmp_path / "page.html").read_text()
    )
    atat("report", "study", "--out", "study.html")
    assert '"title":"Task vowels"' in (tmp_path / "study.html").read_text()
