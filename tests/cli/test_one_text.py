"""Item 8: of one text there is no standard error, and sentences say so; of texts that do not differ it is 0."""

from __future__ import annotations

import json
import math

import pytest
import torch

from atat_zoo.evaluation.results.format import errors_over, with_error
from atat_zoo.evaluation.results.intervals import paired, unpaired
from atat_zoo.evaluation.results.task_results import Score, difference
from atat_zoo.generation.model import Model
from tests.cli.terminal import printed
from tests.evaluation.making import make_run

ONE = "no standard errors, because there is one sequence"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("one")
    for name, objective in (("masked", "mdlm"), ("left", "autoregressive")):
        make_run(made, name, objective)
    return made


@pytest.fixture
def atat(atat, monkeypatch, root):
    monkeypatch.chdir(root)
    return atat


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("eval", "masked", "--sequences", "1"), f"\n  {ONE}\n"),
        (("eval", "left", "--sequences", "1"), f"\n  {ONE}\n"),
        (("judge", "masked", "--judge", "left", "--num-samples", "1"), "\n1 text of 16 tokens by "),
    ],
)
def test_a_sentence_on_one_text_says_so(atat, words, said):
    code, out, _ = atat(*words)
    assert code == 0
    assert said in out
    assert "nan" not in out
    assert "±" not in out


def test_a_difference_of_one_text_is_not_significant(atat):
    """Its interval was the value itself, which excluded 0."""
    table = json.loads(printed(atat, "compare", "masked", "left", "--sequences", "1", "--json"))
    found = table["runs"][1]["bounds"]["nelbo"]["difference"]
    assert math.isfinite(found["nats_per_token"])
    assert (found["low"], found["high"]) == (None, None)
    out = atat("compare", "masked", "left", "--sequences", "1")[1]
    first = next(line for line in out.splitlines() if line.startswith("left ")).split("  ")
    first = [cell.strip() for cell in first if cell]
    assert first[1:3] == ["autoregressive", "left to right, exact"]
    assert first[3:6] == [f"{table['runs'][1]['perplexity']:.2f}", "—", "—"]


@pytest.mark.parametrize("n", [1, 2])
def test_the_interval_of_one_text_has_no_ends(n):
    a, b, count = (torch.full((n,), value) for value in (3.0, 2.0, 4.0))
    found = paired(a, b, count, resamples=100)
    assert found.value == 0.25
    assert (found.low, found.high) == ((-math.inf, math.inf) if n == 1 else (0.25, 0.25))
    assert unpaired(a, b, count, resamples=100).value == 0.25
    one, other = (Score.over("nats", [value] * n, of="some") for value in (1.0, 2.0))
    assert difference(one, other) == ("—" if n == 1 else "-1.0000 [-1.0000, -1.0000]")


@pytest.mark.parametrize(
    ("error", "said"),
    [(None, "+1.50"), (math.nan, "+1.50"), (math.inf, "+1.50"), (0.0, "+1.50 ± 0.00"), (0.2, "+1.50 ± 0.20")],
)
def test_a_value_without_an_error_stands_alone(error, said):
    assert with_error(1.5, error, ".2f", "+") == said
    assert with_error(1.5, error, ".2f") == said.removeprefix("+")


@pytest.mark.parametrize(
    ("errors", "count", "said"),
    [
        ([math.nan], 1, "no standard errors, because there is one text"),
        ([0.0], 1, "no standard errors, because there is one text"),
        ([0.0, 0.0], 8, "± 0, because the texts do not differ"),
        ([0.0, 0.1], 2, "± one standard error over texts"),
        ([None, 0.1], 2, "± one standard error over texts"),
    ],
)
def test_what_an_error_is_over(errors, count, said):
    assert errors_over(errors, "text", count) == said


def test_scores_in_hand(root):
    model, exact = (Model.from_run(root / name) for name in ("masked", "left"))
    one, two = (repr(model.score(texts)) for texts in (["the"], ["the", "old man"]))
    equal = repr(exact.score(["the", "the"]))
    assert one.startswith("<TextScores of 1 text: nelbo ")
    assert " nats per token (no standard error for a single text), 4 draws each>" in one
    assert "±" not in one
    assert two.startswith("<TextScores of 2 texts: nelbo ")
    assert " ± " in two
    assert "differ" not in two
    assert " ± 0.0000 nats per token (the texts do not differ), exact>" in equal
