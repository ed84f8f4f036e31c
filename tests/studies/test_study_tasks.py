"""Scores of tasks over seeds: their differences and intervals, and the words for them."""

import json
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.evaluation.results.intervals import Interval, of_seeds_and_sequences
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.studies import markdown, study_tasks

SUMS = st.lists(st.floats(1, 9, width=16), min_size=4, max_size=4)


def scores(sums, **changes):
    """Return a score for each seed from 18."""
    about = {"of": "these"} | changes
    return {18 + i: Score.over("x", each, [2.0] * len(each), **about) for i, each in enumerate(sums)}


@given(st.lists(st.tuples(SUMS, SUMS), min_size=1, max_size=3), st.booleans())
def test_differences_are_those_of_the_means(pairs, exponential):
    mine, theirs = (scores(sums, exponential=exponential) for sums in zip(*pairs, strict=True))
    found = study_tasks.compare(mine, theirs)
    expected = [(sum(a) - sum(b)) / 8 for a, b in pairs]
    assert found["each"] == pytest.approx(expected, abs=1e-9)
    assert found["seeds"] == list(mine)
    assert found["over_items"]["value"] == pytest.approx(sum(expected) / len(pairs), abs=1e-9)
    both = of_seeds_and_sequences(found["each"], Interval(**found["over_items"]))
    assert found["both"] == (both and pytest.approx(attrs.asdict(both)))


def test_the_items_are_resampled_after_the_mean_over_seeds():
    """Differences that cancel over seeds are none, however large each is."""
    found = study_tasks.compare(scores([[1, 5, 2, 8], [8, 2, 5, 1]]), scores([[8, 2, 5, 1], [1, 5, 2, 8]]))
    assert found["over_items"] == {"value": 0, "low": 0, "high": 0}


def test_other_items_and_no_numbers_are_not_compared():
    one, nothing = [[1.0, 2.0, 3.0, 4.0]] * 2, {"each": [], "over_items": None, "both": None}
    base = scores(one)
    assert study_tasks.compare(base, scores(one, of="those")) == {"seeds": [18, 19], **nothing}
    assert study_tasks.compare(base, {20: base[18]}) == {"seeds": [], **nothing}
    assert study_tasks.compare(base, scores([[math.inf] * 4] * 2)) == {"seeds": [18, 19], **nothing}
    # Items that are never the same, as times are, have differences, and no interval.
    found = study_tasks.compare(scores(one, of=""), scores(one, of=""))
    assert (found["over_items"], found["each"]) == (None, [0, 0])
    # Nor is rounding a spread: these differ in their last bit.
    mine, theirs = ([[value] * 4 for value in values] for values in ((0.1, 0.3), (0.0, 0.2)))
    found = study_tasks.compare(scores(mine), scores(theirs))
    assert len(set(found["each"])) == 2
    assert found["both"] is None
    # As have items that differ from seed to seed.
    other = {18: base[18], 19: scores(one, of="those")[19]}
    assert (study_tasks.compare(other, other)["over_items"], study_tasks.compare(other, other)["each"]) == (
        None,
        [0, 0],
    )


def test_the_table_of_a_task_in_words():
    published = {"AR": 25.75}
    each = scores([[4, 5, 6, 7], [5, 6, 7, 8]], exponential=True, published=published)
    base = scores([[5, 6, 7, 8], [6, 7, 8, 9]], exponential=True, published=published)
    row = {"seeds": [18, 19], "items": [4, 4]}
    values = {name: [score.value for score in of.values()] for name, of in (("base", base), ("arm", each))}
    rows = [
        {"arm": "base", **row, "values": values["base"], "against": []},
        {"arm": "arm", **row, "values": values["arm"], "against": [{"arm": "base", **study_tasks.compare(each, base)}]},
    ]
    score = {"score": "text", "quantity": "perplexity", "exponential": True, "published": published, "rows": rows}
    report = {"tasks": [{"task": "any", "seed": 3, "scores": [score], "notes": ["one note"]}]}
    (table,) = markdown.task_tables(json.loads(json.dumps(report)))
    assert (table.title, table.headings[2:5]) == ("Task any", ["arm", "items", "value by seed"])
    assert table.notes == ["Evaluated with seed 3.", "one note"]
    mean = [f"{math.exp(nats):.2f}" for nats in (3.25, 3.75, 2.75, 3.25)]
    # Differences that are all the same have no spread, which an interval would be of.
    assert table.texts == [
        ["text", "perplexity", "base", "4", f"{mean[0]}, {mean[1]}", "—", "—"],
        ["text", "perplexity", "arm", "4", f"{mean[2]}, {mean[3]}", "base", "— (all equal)"],
        ["text", "perplexity", "AR, published", "—", "25.75", "—", "—"],
    ]
    against = rows[1]["against"][0]
    for each, both, said in (
        ([0.1], None, "+10.52 % [+0.00, +22.14] (one seed)"),
        ([0.1, 0.1], None, "+10.52 % [+0.00, +22.14] (all seeds equal)"),
        ([0.1, 0.1], {"value": 0.1, "low": -0.1, "high": 0.3}, "+10.52 % [-9.52, +34.99]"),
    ):
        against |= {"each": each, "both": both, "over_items": {"value": 0.1, "low": 0.0, "high": 0.2}}
        assert next(markdown.task_tables(report)).texts[1][6] == said
    against["over_items"] = against["both"] = None
    assert next(markdown.task_tables(report)).texts[1][6] == "—"
