"""A package of twenty lines adds a metric of texts: it is listed, checked, compared, studied, drawn, and evaluated."""

import json

import pytest

from tests.testing.twenty_lines import installed

PLUGIN = '''
from atat_zoo.measure.metrics import Metric
from atat_zoo.registry import component, hookimpl, param

CONTRACT = 2

@component
class Vowels(Metric):
    """The share of the characters of a text that are vowels."""
    name, summary, reads = "vowels", "share of the characters that are vowels", "texts"
    of: str = param("aeiou", help="the vowels")

    def build(self):
        from atat_zoo.measure.text_states import TextMean
        return TextMean(lambda text, pieces: (sum(map(text.count, self.of)), len(text)))

@hookimpl
def atat_zoo_metric():
    return [Vowels]
'''


@pytest.mark.slow
def test_a_metric_of_a_plugin_is_everywhere(tmp_path):
    tiny, atat = installed(tmp_path, PLUGIN, "metrics")
    assert "share of the characters that are vowels" in atat("zoo", "list", "metric")
    assert "breaks" not in atat("zoo", "check", "atat-zoo-vowels")
    named = [
        "train.steps=2",
        "train.log_every=2",
        "train.evaluate_every=1",
        "evaluation.samples=0",
        'evaluation.metrics=["vowels"]',
    ]
    for seed, run in enumerate(("one", "two"), 3):
        atat("train", str(tiny.path), *named, f"seed={seed}", "--out", run)
    files = sorted((tmp_path / "one" / "evaluations").glob("*.json"))
    written = [json.loads(file.read_text())["metrics"]["vowels"] for file in files]
    assert len(written) == 3
    assert all(0 <= each["value"] <= 1 for each in written)
    lines = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("validation/vowels") for line in lines] == [written[1]["value"], None]  # the end has no line
    compared = json.loads(atat("compare", "one", "two", "--json"))
    assert all(0 <= run["metrics"]["vowels"]["value"] <= 1 for run in compared["runs"])
    assert compared["runs"][0]["metrics"]["vowels"]["value"] == pytest.approx(written[-1]["value"])
    assert "| arm | vowels |" in atat("study", "study.toml", "--jobs", "1")
    atat("report", "one", "two", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '"columns":["metric","one","two"],"rows":[["vowels",' in page
    atat("report", "study", "--out", "study.html")
    assert '"columns":["arm","vowels"]' in (tmp_path / "study.html").read_text()
