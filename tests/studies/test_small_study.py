"""A study that is trained, written with, and priced in this process: every number follows from what it keeps."""

from __future__ import annotations

import json
import math
import os
import statistics

import pytest

from atat_zoo.studies import load
from atat_zoo.studies.runner import FINISHED, TO_CONTINUE, TO_DO, StudyRunner, plan, total
from atat_zoo.training import train
from tests.studies.making import STUDY, Place

pytestmark = pytest.mark.slow

MORE = """
[samplers]
arms = ["plain", "fast"]
each = [{ use = "strided", stride = 4 }, { use = "ancestral", steps = 2 }]
sequences = 6
orders = 2
texts = 1
repeat = 1
[gaps]
arms = ["plain", "fast"]
each = [{ use = "strided", stride = 8 }]
lengths = [4]
sequences = 5
"""


class Here:
    """Trains in this process; a run may be left in the middle."""

    def __init__(self, *, but=""):
        self.but, self.trained = but, []

    def train(self, runs):
        left = [run for run in runs if not run.finished and run.name != self.but]
        for run in left:
            self.trained.append(run.name)
            train(run.experiment, run.path)
        return {}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return a study's folder, its plans before, in the middle and after, its report, and what it said."""
    place, before, said = Place(tmp_path_factory.mktemp("small")), os.getcwd(), []
    place.write(STUDY + MORE)
    os.chdir(place.root)
    try:
        runner = StudyRunner(load(place.root / "study.toml"), say=said.append)
        plans = []
        for but in ("all", "fast-seed19", ""):
            if but != "all":
                runner.train(Here(but=but))
            else:
                runner.look()
            plans.append(plan(runner))
        report = runner.report()
        again = StudyRunner(runner.study, say=said.append)
        again.train_nothing()
        assert again.report() == report
    finally:
        os.chdir(before)
    return place, plans, report, said


def test_a_plan_says_what_is_left_and_how_long_it_takes(done):
    _, (before, middle, after), _, _ = done
    names = ["plain-seed18", "fast-seed18", "plain-seed19", "fast-seed19"]
    assert [row.run for row in before] == names
    assert {(row.state, row.step, row.steps, row.seconds) for row in before} == {(TO_DO, 0, 3, None)}
    assert total(before, 1) is None
    assert {row.run: (row.state, row.step) for row in middle} == dict.fromkeys(names, (FINISHED, 3)) | {
        "fast-seed19": (TO_DO, 0)
    }
    (left,) = (row for row in middle if row.state == TO_DO)
    assert 0 < left.seconds < 60
    assert total(middle, 2) == left.seconds / 2
    assert {(row.state, row.step, row.seconds) for row in after} == {(FINISHED, 3, 0.0)}
    assert TO_CONTINUE not in {row.state for row in (*before, *middle, *after)}


def test_every_run_is_trained_and_measured_once(done):
    _, _, _, said = done
    assert sorted(line.partition(":")[0] for line in said if "evaluating" in line) == sorted(
        f"{arm}-seed{seed}" for arm in ("plain", "fast") for seed in (18, 19)
    )
    for what in ("timing 2 samplers", "policy bounds of 2 samplers"):
        assert sum(what in line for line in said) == 4, what


def kept(place, part, **about):
    """Return the lines of nats of a part, in the order of seeds."""
    lines = [json.loads(line) for line in (place.folder / "study.nats.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["part"] == part and all(line[key] == about[key] for key in about)]
    return sorted(found, key=lambda line: line["seed"])


def mean(line):
    return sum(line["nats"]) / sum(line["tokens"])


def test_the_values_of_arms_samplers_and_gaps_follow_from_the_nats_that_are_kept(done):
    place, _, report, _ = done
    assert report == json.loads((place.folder / "study.json").read_text())
    for arm, table in report["arms"].items():
        found = [run["bounds"][run["bound"]]["nats_per_token"] for run in table["runs"]]
        assert [mean(line) for line in kept(place, "claim", arm=arm)] == pytest.approx(found, abs=1e-4)
    assert [each["arm"] for each in report["samplers"]] == ["plain", "fast"]
    for table in report["samplers"]:
        assert table["sequences"] == 6
        for each in table["samplers"]:
            lines = kept(place, "samplers", arm=table["arm"], by=each["sampler"])
            assert [math.exp(mean(line)) for line in lines] == pytest.approx(each["values"], rel=1e-4)
            assert {len(line["nats"]) for line in lines} == {6}
        quantities = [each["quantity"] for each in table["samplers"]]
        assert quantities == ["policy likelihood", "policy bound"]
    assert [table["what"] for table in report["gaps"]] == ["the whole", "the second half", "a gap of 4"]
    for table in report["gaps"]:
        assert [(row["arm"], row["by"] is None) for row in table["rows"]] == [
            *(("plain", True), ("plain", False)),
            *(("fast", True), ("fast", False)),
        ]
        for row in table["rows"]:
            lines = kept(place, "gaps", arm=row["arm"], by=row["by"], what=table["what"])
            assert [math.exp(mean(line)) for line in lines] == pytest.approx(row["values"], rel=1e-4)
            assert {len(line["nats"]) for line in lines} == {5}


def test_a_difference_is_that_of_the_same_sequences(done):
    place, _, report, _ = done
    (table,) = (each for each in report["comparisons"] if each["arm"] == "fast")
    pairs = zip(kept(place, "claim", arm="fast"), kept(place, "claim", arm="plain"), strict=True)
    differences = [mean(one) - mean(other) for one, other in pairs]
    assert [each["nats_per_token"] for each in table["each"]] == pytest.approx(differences, abs=2e-4)
    assert table["both"]["nats_per_token"] == pytest.approx(statistics.fmean(differences), abs=2e-4)
    assert table["both"]["low"] < table["both"]["nats_per_token"] < table["both"]["high"]
