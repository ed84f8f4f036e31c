"""Intervals of a study: from nats of each sequence, and of results that were recorded before them."""

import json
import math
from pathlib import Path

import pytest

from atat_zoo.reports import study_data
from atat_zoo.studies import markdown, study_results
from atat_zoo.studies.differences import mark, over_both, over_sequences, shown
from tests.studies.test_study_results import ALONE, run_of

LONE = [{"jobs": 1, "threads": 1, "alone": True}]


def test_a_run_that_did_not_train_alone_has_no_seconds(tmp_path):
    run = run_of(tmp_path, "a1", 1, 4.0, seconds=2.0)
    assert study_results._run_table(run, ALONE)["seconds"] == 2.0
    for how in ({}, {"a1": [LONE[0] | {"alone": False}]}):
        table = study_results._run_table(run, how)
        assert (table["seconds"], table["seconds_per_step"]) == (None, None)
    base = {1: run_of(tmp_path, "b1", 1, 4.0)}
    assert study_results.compare({1: run}, base, ALONE)["ratios"]["seconds"] == 1
    assert study_results.compare({1: run}, base, {"a1": ALONE["a1"]})["ratios"]["seconds"] is None


def test_an_interval_over_sequences_only_says_why():
    both, sequences = {"percent": 1.0}, {"percent": 2.0}
    for table, want, why in (
        ({"each": [1, 2], "both": both}, both, ""),
        ({"each": [1], "both": None}, sequences, " (one seed)"),
        ({"each": [1, 1], "both": None}, sequences, " (all seeds equal)"),
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
    assert ("before NLLs per sequence were recorded" in markdown.page(report)) is not nats
    said = [line for block in study_data._blocks(report) for line in block.get("said", ())]
    assert any("before NLLs per sequence were recorded" in line for line in said) is not nats
