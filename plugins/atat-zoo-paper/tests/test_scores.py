"""Tables of the scores of a study's arms: over seeds or over items, what is not there yet, and what is refused."""

import json
import math
import re
import statistics

import pytest
from manifests import Place

from atat_zoo.errors import UserError
from atat_zoo.studies.differences import over_both

STUDY = """
seeds = [1, 2, 3]
baseline = "one"
[evaluation]
tasks = ["infilling"]
[arms.one]
experiment = "mdlm"
[arms.two]
experiment = "bell"
"""
VALUES = {"exact match": [0.25, 0.5, 0.3], "price": [4.0, 5.0, 6.0]}


def score(name, values):
    row = {"arm": "one", "seeds": [1, 2, 3], "items": [9] * 3, "values": values, "stderrs": [0.1, 0.2, 0.3]}
    return {"score": name, "exponential": name == "price", "quantity": "q", "published": {}, "rows": [row]}


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    (tmp_path / "tasked.toml").write_text(STUDY)
    task = {"settings": {"use": "infilling"}, "notes": ["said beside it"]}
    task["scores"] = [score(name, values) for name, values in VALUES.items()]
    report = {"arms": {"one": {"runs": []}}, "comparisons": [], "tasks": [task]}
    (made.results / "tasked.json").write_text(json.dumps(report))
    return made


def wanted(place, **changes):
    table = {"data": "scores", "study": str(place.root / "tasked.toml"), "task": "infilling", "label": "gaps"}
    table |= {"caption": "Gaps.", "columns": ["exact match", "price"], "higher": ["exact match"]}
    return table | {"rows": [{"arm": "one"}, {"arm": "two", "name": "Two"}]} | changes


def test_a_score_is_its_mean_over_seeds_and_an_arm_without_one_is_missing(place):
    filled = place.made(wanted(place)).tables[0]
    (_, (match, price)), (_, theirs) = filled.rows
    found = over_both(VALUES["exact match"], [0.1, 0.2, 0.3])
    assert (match.value, match.low, match.high) == (found.value, found.low, found.high)
    logs = over_both([math.log(value) for value in VALUES["price"]], [0.1 / 4, 0.2 / 5, 0.3 / 6])
    assert (price.low, price.high) == pytest.approx((math.exp(logs.low), math.exp(logs.high)))
    assert price.value == pytest.approx(math.exp(statistics.fmean(map(math.log, VALUES["price"]))))
    assert {each.text for each in theirs} == {"--"}
    assert "atat study" in theirs[0].command
    assert "said beside it" in place.texts("gaps")[1]


def test_over_items_it_has_the_error_of_a_seed(place):
    (match, _) = place.made(wanted(place, intervals="sequences")).tables[0].rows[0][1]
    assert match.value == pytest.approx(0.35)
    assert match.high - match.value == pytest.approx(1.96 * 0.2, rel=1e-3)


def test_what_was_never_measured_is_missing_whatever_its_name(place):
    (place.results / "tasked.json").unlink()
    filled = place.made(wanted(place, columns=["no such score"], higher=[]))
    assert {each.text for _, cells in filled.tables[0].rows for each in cells} == {"--"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "infill"}, "has no task 'infill'; did you mean 'infilling'? (there are: infilling)"),
        ({"columns": ["prize"], "higher": []}, "the task 'infilling' has no score 'prize'; did you mean 'price'?"),
        ({"lower": ["prices"]}, "'prices' is no column; did you mean 'price'?"),
        ({"rows": [{"arm": "three"}]}, "three"),
    ],
)
def test_what_is_not_there_is_named(place, changes, said):
    with pytest.raises(UserError, match=re.escape(said)):
        place.made(wanted(place, **changes))
