"""Intervals of a study: from nats of each sequence, and of results that were recorded before them."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch

from atat_zoo.evaluation.results.intervals import of_mean, of_seeds_and_sequences, paired
from atat_zoo.reports import studies
from atat_zoo.studies import markdown, results
from atat_zoo.studies.differences import alone, completed, mark, over_both, over_sequences, shown
from tests.studies.test_results import ALONE, NOISE, run_of

LONE = [{"jobs": 1, "threads": 1, "alone": True}]


def test_the_intervals_can_be_computed_again_from_the_nats_of_each_sequence(tmp_path):
    arms = {
        arm: {seed: run_of(tmp_path, f"{arm}{seed}", seed, 4 + shift * seed * (NOISE + 1)) for seed in (1, 2, 3)}
        for arm, shift in (("a", 0.05), ("b", 0.0))
    }
    found = results.compare(arms["a"], arms["b"], {})
    lines = [json.loads(json.dumps(line)) for line in results.nats_of("claim", arms)]
    assert {(line["part"], line["arm"], line["seed"], line["bound"]) for line in lines} == {
        ("claim", arm, seed, "nelbo") for arm in "ab" for seed in (1, 2, 3)
    }
    nats = {(line["arm"], line["seed"]): torch.tensor(line["nats"], dtype=torch.float64) for line in lines}
    count = torch.tensor(lines[0]["tokens"])
    pairs = [(nats["a", seed], nats["b", seed]) for seed in (1, 2, 3)]
    mean = [torch.stack(each).mean(0) for each in zip(*pairs, strict=True)]
    both = of_seeds_and_sequences([paired(*pair, count).value for pair in pairs], paired(*mean, count))
    for key, end in (("nats_per_token", both.value), ("low", both.low), ("high", both.high)):
        assert found["both"][key] == pytest.approx(end, abs=1e-5)
    # Wider than over the seeds, and than over the sequences.
    assert both.width > of_mean([each["nats_per_token"] for each in found["each"]]).width
    assert both.width > found["sequences"]["high"] - found["sequences"]["low"]


def older(table):
    """Return the table of a difference as it was recorded before."""
    table = copy.deepcopy(table)
    del table["both"]
    return table | {"over_seeds": {"percent": 9.0}, "not_worse": "whatever"}


@pytest.fixture
def report(tmp_path):
    """Results with a difference in every place where there is one."""
    base = {seed: run_of(tmp_path, f"b{seed}", seed, 4 + NOISE) for seed in (1, 2, 3)}
    arm = {seed: run_of(tmp_path, f"a{seed}", seed, 4 + 1.1 * NOISE + seed / 100) for seed in (1, 2, 3)}
    compared = {"arm": "a", "against": "b", **results.compare(arm, base, ALONE)}
    table = {
        name: {"runs": [results._run_table(run, ALONE) for run in of.values()]}
        for name, of in (("a", arm), ("b", base))
    }
    for each in table.values():
        each |= {"seconds": 2.0, "seconds_per_step": 0.5}
    point = {"values": [1], "arm": "a"}
    return {
        "arms": table,
        "comparisons": [compared],
        "samplers": [{"samplers": [{"values": [1.0]}, {"sampler": {}, **compared}]}],
        "gaps": [{"rows": [{"against": [{"by": None, **compared}]}]}],
        "grids": [{"arm": "b", "points": [point]}],
        "test": {"arms": copy.deepcopy(table), "comparisons": [compared | {"ratios": dict(compared["ratios"])}]},
    }


def test_older_results_are_completed_from_what_they_recorded(report):
    want = report["comparisons"][0]
    compared = older(want)
    old = copy.deepcopy(report) | {
        "comparisons": [compared, {"arm": "c", "against": "b", "problem": "no seed"}],
        "samplers": [{"samplers": [{"values": [1.0]}, {"sampler": {}, **compared}]}],
        "gaps": [{"rows": [{"against": [{"by": None, **compared}]}]}],
        "multipliers": [{"arm": "a", "each": [{"seed": 1, "multiplier": 2.0}], "over_seeds": {"value": 2.0}}],
    }
    over_items = {"value": 0.2, "low": 0.1, "high": 0.4}
    old["tasks"] = [{"against": [{"each": [0.1, 0.3], "over_items": over_items, "over_seeds": {"value": 0.2}}]}]
    new = completed(json.loads(json.dumps(old)))
    for each in (new["comparisons"][0], new["samplers"][0]["samplers"][1], new["gaps"][0]["rows"][0]["against"][0]):
        assert each["both"] == pytest.approx(want["both"])
        assert each["not_worse"] == want["not_worse"] is False
        assert "over_seeds" not in each
    assert new["multipliers"][0] == {"arm": "a", "each": [{"seed": 1, "multiplier": 2.0}], "both": None}
    task = new["tasks"][0]["against"][0]["both"]
    half = 12.706204736 * 0.1  # t with one degree of freedom
    assert task == pytest.approx(
        {"value": 0.2, "low": 0.2 - math.hypot(half, 0.1), "high": 0.2 + math.hypot(half, 0.2)}
    )
    (point,) = new["grids"][0]["points"]
    assert point["difference"] == new["comparisons"][0]["both"]
    assert (point["seeds"], point["bound"]) == (3, "perplexity")
    nats = [run["bounds"]["perplexity"]["nats_per_token"] for run in new["arms"]["a"]["runs"]]
    assert math.log(point["value"]) == pytest.approx(sum(nats) / 3)
    assert completed(copy.deepcopy(new)) == new


def test_what_is_not_finite_stays_so(report):
    compared = older(report["comparisons"][0])
    compared["each"][1]["nats_per_token"] = compared["sequences"]["high"] = None
    report["comparisons"] = [compared]
    completed(report)
    assert compared["not_worse"] is False
    assert markdown.difference(json.loads(json.dumps(results.finite(compared)))) == "not finite"


def test_seconds_are_shown_of_trainings_that_ran_alone(report):
    assert alone(LONE)
    for how in ([], [{"jobs": 1, "threads": 1}], [*LONE, {"jobs": 1, "threads": 1, "alone": False}]):
        assert not alone(how)
        changed = copy.deepcopy(report)
        changed["arms"]["a"]["runs"][1]["trained_with"] = how
        completed(changed)
        assert changed["arms"]["a"]["seconds"] is None
        assert [run["seconds_per_step"] for run in changed["arms"]["a"]["runs"]] == [None] * 3
        assert changed["arms"]["b"] == report["arms"]["b"]
        ratios = changed["comparisons"][0]["ratios"]
        assert (ratios["seconds"], ratios["seconds_per_step"], ratios["steps"]) == (None, None, 1)
        assert changed["test"]["arms"] == report["test"]["arms"]
    changed = copy.deepcopy(report)
    changed["arms"]["b"]["runs"][0]["trained_with"] = []
    assert completed(changed)["comparisons"][0]["ratios"]["seconds"] is None
    assert changed["arms"]["a"]["seconds"] == 2.0
    assert completed(copy.deepcopy(report)) == report | {"grids": completed(copy.deepcopy(report))["grids"]}


def test_a_run_that_did_not_train_alone_has_no_seconds(tmp_path):
    run = run_of(tmp_path, "a1", 1, 4.0, seconds=2.0)
    assert results._run_table(run, ALONE)["seconds"] == 2.0
    for how in ({}, {"a1": [LONE[0] | {"alone": False}]}):
        table = results._run_table(run, how)
        assert (table["seconds"], table["seconds_per_step"]) == (None, None)
    base = {1: run_of(tmp_path, "b1", 1, 4.0)}
    assert results.compare({1: run}, base, ALONE)["ratios"]["seconds"] == 1
    assert results.compare({1: run}, base, {"a1": ALONE["a1"]})["ratios"]["seconds"] is None


def test_an_interval_over_sequences_only_says_why():
    both, sequences = {"percent": 1.0}, {"percent": 2.0}
    for table, want, why in (
        ({"each": [1, 2], "both": both}, both, ""),
        ({"each": [1], "both": None}, sequences, " (one seed)"),
        ({"each": [1, 1], "both": None}, sequences, " (all seeds the same)"),
    ):
        assert shown(table | {"sequences": sequences}) is want
        assert mark(table) == why


def test_a_value_over_seeds_has_the_error_over_sequences_in_its_interval():
    assert over_both([4.0], [0.1]) is None
    sequences, both = over_sequences([4.0, 4.2], [0.1, 0.3]), over_both([4.0, 4.2], [0.1, 0.3])
    assert (sequences.value, sequences.high) == pytest.approx((4.1, 4.1 + 1.959964 * 0.2))
    assert both.high == pytest.approx(4.1 + math.hypot(1.959964 * 0.2, 12.706204736 * 0.1))


@pytest.mark.parametrize("nats", [True, False])
def test_a_page_says_which_of_its_rows_are_from_margins(nats):
    path = Path(__file__).parents[2] / "docs" / "studies" / "wikitext2.json"
    report = json.loads(path.read_text(encoding="utf-8")) | {"nats": nats}
    assert ("before nats per sequence were recorded" in markdown.page(report)) is not nats
    said = [line for block in studies._blocks(report) for line in block.get("said", ())]
    assert any("before nats per sequence were recorded" in line for line in said) is not nats
