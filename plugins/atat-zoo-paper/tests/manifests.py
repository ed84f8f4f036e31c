"""Manifests in a folder of their own, on copies of committed studies and on run folders that were never trained."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil

import pytest
import tomli_w
from atat_zoo_paper.paper_file import load
from atat_zoo_paper.paper_folder import fill, write

from atat_zoo import experiment as experiments
from atat_zoo.system.errors import UserError
from tests.pages import ROOT

STUDIES = ROOT / "docs" / "studies"
ARMS = {"data": "study", "study": "sets", "label": "main", "caption": "What 50 % & more_of #1 costs."}
ARMS |= {"columns": ["value", "bound", "difference", "steps"]}
ARMS |= {"rows": [{"arm": "mdlm", "name": "MDLM"}, {"arm": "sets"}, {"arm": "sets_417"}, {"arm": "autoregressive"}]}
CITED = {"table": "main", "name": "Other_one", "source": "arXiv:2406.07524", "differs": "50 % of the data"}


class Place:
    """The folder."""

    def __init__(self, root):
        self.root, self.out = root, root / "out"
        self.results = root / "results"
        self.results.mkdir()

    def study(self, name, change=lambda report: None):
        """Copy the results of a study, with a change."""
        report = json.loads((STUDIES / f"{name}.json").read_text(encoding="utf-8"))
        change(report)
        self.result(name, report)
        return report

    def result(self, name, report):
        (self.results / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")

    def file(self, name, text):
        (self.root / name).write_text(text)
        return str(self.root / name)

    def manifest(self, *tables, figures=(), cited=(), **plain):
        """Write a manifest and return its path."""
        table = {"title": "A paper", "results": str(self.results), **plain}
        table |= {"table": list(tables), "figure": list(figures), "cited": list(cited)}
        path = self.root / "paper.toml"
        path.write_text(tomli_w.dumps(table), encoding="utf-8")
        return path

    def made(self, *tables, **more):
        """Write the folder of a paper and return what it was filled with."""
        filled = fill(load(self.manifest(*tables, **more)))
        shutil.rmtree(self.out, ignore_errors=True)
        write(filled, self.out)
        return filled

    def refused(self, said, *tables, **more):
        """See that a manifest is refused in one sentence."""
        with pytest.raises(UserError, match=re.escape(said)) as refused:
            fill(load(self.manifest(*tables, **more)))
        assert "\n" not in str(refused.value)

    def text(self, name):
        return (self.out / name).read_text(encoding="utf-8")

    def texts(self, label):
        """Return a table as LaTeX, Markdown and CSV."""
        return [self.text(f"tables/{label}.{ending}") for ending in ("tex", "md", "csv")]

    def rows(self, label):
        """Return the rows of a table's CSV by their names."""
        return {row["name"]: row for row in csv.DictReader(io.StringIO(self.texts(label)[2]))}

    def run(self, name, results=(), experiment="mdlm", trained=True):
        """Write a run folder with results and return its path."""
        run = self.root / name
        (run / "evaluations").mkdir(parents=True)
        (run / "resolved.toml").write_text(experiments.load(experiment).to_toml(), encoding="utf-8")
        if trained:
            (run / "model").mkdir()
            (run / "model" / "model.json").write_text("{}")
        for number, result in enumerate(results):
            (run / "evaluations" / f"{number}.json").write_text(json.dumps(result), encoding="utf-8")
        return str(run)


def balanced(text):
    """Whether braces and environments of LaTeX close in the order in which they open, and mathematics ends."""
    text = re.sub(r"\\[\\{}$%&#_]", "", re.sub(r"(?<!\\)%.*", "", text))
    stack = []
    for begin, end, brace in re.findall(r"\\begin\{(\w+)\}|\\end\{(\w+)\}|([{}])", text):
        if begin or brace == "{":
            stack.append(begin or "{")
        elif not stack or stack.pop() != (end or "{"):
            return False
    return not stack and text.count("$") % 2 == 0


def evaluation(value, **other):
    bound = {"value": value, "stderr": 0.5, "nats_per_token": 4.0, "bits_per_byte": 1.5, "bits_per_byte_stderr": 0.01}
    table = {"corpus": "", "split": "validation", "step": 450, "sequences": 768, "draws": 4, "seed": 0, "tokens": 49152}
    table |= {"bytes": 200000, "words": 40000, "method": "exact_k", "bounds": {"nelbo": bound}, "metrics": {}}
    return table | other


def scored(task, value, of="items", **published):
    """Return the result of a task with one score, `price`."""
    score = {"quantity": "nats per token", "value": value, "stderr": 0.1, "items": 3, "of": of, "sums": []}
    score |= {"weights": [], "exponential": False, "published": published}
    settings = {"task": task, "inputs": None, "seed": 0, "weights": ""}
    result = {"task": "it", "settings": settings, "step": 450, "ema": False, "scores": {"price": score}}
    return result | {"notes": ["a_note"]}
