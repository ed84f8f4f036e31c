"""The field's zero-shot table."""

import json
from types import SimpleNamespace

import attrs
import pytest
import torch
from torch import nn

from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.tasks.zero_shot import TABLE, ZeroShotTask
from atat_zoo.experiment import EvaluationSpec, load, recipe
from atat_zoo.generation.model import Model
from tests import fixtures
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("zero-shot")
    fixtures.write_all(made)
    for name, noise in (("one", {}), ("other", {"noise": "cosine"})):
        make_run(made, name, "mdlm", sampler={"use": "ancestral", "steps": 4}, **noise)
    return made


def test_every_corpus_is_its_split_of_the_recipe(root, monkeypatch):
    monkeypatch.chdir(root)
    for name, row in TABLE.items():
        whole = recipe(name)
        assert whole.undivided == (row.split == "train")
        assert list(ZeroShotTask()._text(name).documents("train")) == list(whole.documents(row.split))
    assert not list(ZeroShotTask().absent())


def test_a_score_is_the_bound_on_the_text(root, monkeypatch):
    monkeypatch.chdir(root)
    model, told, task = Model.from_run("one"), [], ZeroShotTask(corpora=("ptb", "ag_news"), sequences=5, mask_samples=2)
    scores = task.measure(model, root / "one", seed=6, progress=lambda *done: told.append(done))
    rows, score = [each.items for each in scores.values()], scores["PTB"]
    assert told[-1] == (sum(rows), sum(rows))  # over all corpora
    assert (rows[0], sum(rows)) in told == sorted(told)
    spec = EvaluationSpec(sequences=5, mask_samples=2, batch_size=4)
    text = text_of(model, "one", spec, corpus=recipe("ptb"), corpus_name="ptb")
    nats = measure(model.module, text.tokens, text.maskable, spec, seed=6).contribution["nelbo"].sum(1)
    assert score.quantity == "perplexity"
    assert score.value == pytest.approx(float((nats.sum() / text.maskable.sum()).exp()))
    torch.testing.assert_close(torch.tensor(score.sums, dtype=torch.float64), nats)
    assert score.published == {"AR": 82.05, "SEDD": 100.09, "MDLM": 95.26}
    assert TABLE["lambada"].published == (51.28, 49.86, 47.52)


def test_text_that_is_not_there_is_named_with_where_it_is_had(root, atat, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = atat("eval", str(root / "one"), "--task", "zero_shot")
    assert (code, out, err.count("\n")) == (2, "", 7)
    (line,) = (line for line in err.splitlines() if "LAMBADA: file not found: corpora/lambada/" in line)
    assert line.endswith("run `atat data get lambada`, or leave 'lambada' out of the task's corpora")
    only = f"{{use = 'zero_shot', corpora = ['lambada'], sequences = 2, root = '{root}'}}"
    assert atat("eval", str(root / "one"), "--task", only)[0] == 0


def test_the_table_has_what_was_published_and_what_differs(root, atat, monkeypatch):
    monkeypatch.chdir(root)
    task = "{use = 'zero_shot', corpora = ['ptb', 'ag_news'], sequences = 4}"
    code, out, err = atat("eval", "one", "--task", task)
    assert (code, err) == (0, "")
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert rows["PTB"].split()[-3:] == ["82.05", "100.09", "95.26"]
    assert "not as published (arXiv:2406.07524): sequences of 16 tokens, not 1024" in out
    code, out, _ = atat("compare", "one", "other", "--task", task, "--json")
    compared = json.loads(out)["runs"]
    assert [run["run"] for run in compared] == ["one", "other"]
    one, other = (run["tasks"][0]["scores"]["PTB"] for run in compared)
    assert one["difference"] is None
    difference, ratio = other["difference"], other["value"] / one["value"]
    assert torch.tensor(difference["value"]).exp().item() == pytest.approx(ratio)
    assert difference["low"] <= difference["value"] <= difference["high"]
    assert f", {100 * (ratio - 1):+.2f} % [" in atat("compare", "one", "other", "--task", task)[1]


def differences(steps=1.0, size=1.0, corpora=("ptb",)):
    """Return what differs from the published models in one of so many times as many tokens and parameters."""
    experiment = load("owt-small/mdlm")
    train = attrs.evolve(experiment.train, steps=round(experiment.train.steps * steps))
    module = SimpleNamespace(backbone=nn.Linear(13_000, round(13_000 * size), bias=False, device="meta"))
    sizes = {"context": SimpleNamespace(length=1024), "tokenizer": SimpleNamespace(vocabulary_size=50_257)}
    model = SimpleNamespace(experiment=attrs.evolve(experiment, train=train), module=module, **sizes)
    return [each.partition(": ")[2] for each in ZeroShotTask(sequences=0, corpora=corpora).notes(model)]


def test_what_differs_from_what_was_published_is_said_beyond_ten_percent():
    (said,) = differences(corpora=tuple(TABLE))
    assert said.startswith("WikiText is read article by article")
    assert [differences(**{what: near}) for what in ("steps", "size") for near in (0.92, 1.08)] == [[]] * 4
    for far, tokens, millions in ((0.88, "4.6e+11", "149"), (1.12, "5.9e+11", "189")):
        assert differences(steps=far) == [f"trained on {tokens} tokens, including repetitions, not 5.2e+11"]
        assert differences(size=far) == [f"a network of {millions} million parameters, not 169"]
