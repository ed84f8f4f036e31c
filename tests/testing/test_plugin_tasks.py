"""A package of twenty lines adds a task: it is listed, checked, measured, compared, studied, and in both reports."""

import json
import os

import pytest

from tests import forked
from tests.installing import described
from tests.testing.test_plugin_metrics import _path
from tests.tiny import Tiny

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
STUDY = """
folder = "study"
baseline = "one"
seeds = [1]
overrides = ["train.steps=1", "evaluation.sequences=4"]
[arms.one]
experiment = "tiny.toml"
[arms.two]
experiment = "tiny.toml"
overrides = ["optimizer.learning_rate=1e-4"]
[evaluation]
sequences = 4
tasks = ["vowels"]
"""


@pytest.mark.slow
def test_a_task_of_a_plugin_is_everywhere(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "made_up_vowels.py").write_text(PLUGIN)
    described(tmp_path / "site", "atat-zoo-vowels", "1.0", "[atat_zoo]\nvowels = made_up_vowels\n")
    tiny, env = Tiny(tmp_path), {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *_path()])}

    def atat(*words):
        done = forked.run(words, tmp_path, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "share of the written characters that are vowels" in atat("zoo", "list", "task")
    assert "breaks" not in atat("zoo", "check", "atat-zoo-vowels")
    for run in ("one", "two"):
        words = ["train.steps=2", "evaluation.samples=0", 'evaluation.tasks=["vowels"]', f"seed={len(run)}"]
        assert "task vowels, seed 3" in atat("train", str(tiny.path), *words, "--out", run)
    (result,) = json.loads(atat("eval", "one", "--task", "vowels", "--json"))["tasks"]
    assert result["scores"]["share"]["items"] == 4
    assert len(list((tmp_path / "one" / "evaluations").glob("task-vowels-*.json"))) == 1
    compared = json.loads(atat("compare", "one", "two", "--task", "vowels", "--json"))["runs"][1]
    assert compared["tasks"][0]["scores"]["share"]["difference"]["low"] is not None
    (tmp_path / "study.toml").write_text(STUDY)
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
