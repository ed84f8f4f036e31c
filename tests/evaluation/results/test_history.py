"""What the records of a training say, and what they leave open."""

import json

import pytest

from atat_zoo.evaluation.results.history import history
from atat_zoo.experiment import from_table
from atat_zoo.experiment.runs import RunFolder, write_json


@pytest.fixture
def experiment():
    return from_table({"name": "x", "seed": 3, "evaluation": {"sequences": 100, "mask_samples": 2}})


@pytest.fixture
def folder(tmp_path):
    """Ten steps of 100 tokens, at 50 tokens a second and then at 200; the clock on the wall also ran in between."""
    made = RunFolder(tmp_path)
    for step, speed, seconds, memory in ((4, 50.0, 8.1, 7), (8, 200.0, 99.0, 9), (10, 100.0, 105.0, 9)):
        line = {"step": step, "tokens": 100 * step, "tokens_per_second": speed, "seconds": seconds}
        made.append_metrics(line | {"peak_memory": memory << 20})
    return made


def evaluated(folder, step, value, name=None, **other):
    said = {"corpus": "", "split": "validation", "draws": 2, "seed": 3, "method": "exact_k", "sequences": 90}
    write_json(folder.evaluations / f"{name or step}.json", {**said, "step": step, "perplexity": value, **other})


def test_seconds_are_those_of_the_steps(folder, experiment):
    found = history(folder, experiment)
    assert found.clock == ((0, 0.0), (4, 8.0), (8, 10.0), (10, 12.0))
    assert found.seconds == 12.0
    assert [found.seconds_at(step) for step in (0, 2, 4, 6, 9, 10)] == [0, 4, 8, 9, 11, 12]
    assert (found.seconds_at(11), found.tokens_per_second, found.peak_memory) == (None, 100.0, 9 << 20)


def test_the_first_step_that_is_not_above_a_value(folder, experiment):
    for step, value in ((2, 30.0), (10, 18.0), (4, 20.0), (6, 22.0)):
        evaluated(folder, step, value)
    found = history(folder, experiment)
    assert found.evaluated == ((2, 30.0), (4, 20.0), (6, 22.0), (10, 18.0))
    assert (found.final, found.evaluated_on) == (18.0, "90 sequences, 2 masks each")
    assert [found.reached(value) for value in (31, 30, 25, 20, 19, 18, 17.9)] == [2, 2, 4, 4, 10, 10, None]


@pytest.mark.parametrize("key", ["step", "sequences", "perplexity"])
@pytest.mark.parametrize("value", [None, "x", []])
def test_a_damaged_result_is_left_out(folder, experiment, key, value):
    evaluated(folder, 4, 20.0)
    evaluated(folder, 10, 18.0)
    path = folder.evaluations / "10.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    (folder.evaluations / "11.json").write_bytes(b"[" * 100_000)
    assert history(folder, experiment).evaluated == ((4, 20.0),)


@pytest.mark.parametrize(
    "other",
    [
        *({"corpus": "elsewhere"}, {"split": "test"}, {"draws": 8}, {"seed": 4}, {"method": "continuous_t"}),
        *({"sequences": 101}, {"sequences": 5}, {"perplexity": None}),
    ],
)
def test_only_what_the_training_itself_evaluated_counts(folder, experiment, other):
    evaluated(folder, 10, 18.0)
    evaluated(folder, 10, **{"value": 1.0, "name": "later", **other})
    assert history(folder, experiment).evaluated == ((10, 18.0),)


def test_evaluations_of_a_likelihood_count_though_nothing_was_drawn(folder):
    table = {"name": "x", "seed": 3, "objective": "autoregressive", "sampler": "left_to_right"}
    exact = from_table({**table, "evaluation": {"sequences": 100, "mask_samples": 2}})
    evaluated(folder, 10, 18.0, draws=0, method="likelihood")
    found = history(folder, exact)
    assert (found.evaluated, found.evaluated_on) == (((10, 18.0),), "90 sequences, exact")


def test_all_sequences_may_be_meant(folder):
    every = from_table({"name": "x", "seed": 3, "evaluation": {"sequences": 0, "mask_samples": 2}})
    evaluated(folder, 10, 18.0, sequences=5000)
    evaluated(folder, 10, 1.0, name="later", sequences=20)
    assert history(folder, every).evaluated == ((10, 18.0),)


def test_a_training_that_measures_fewer_sequences_on_the_way_has_a_curve_of_these(folder, experiment):
    """Of other text, the value at the end would not be that of the curve."""
    for step, value in ((4, 20.0), (8, 19.0), (10, 18.5)):
        evaluated(folder, step, value, name=f"few-{step}", sequences=20)
    evaluated(folder, 10, 19.5)
    found = history(folder, experiment)
    assert found.evaluated == ((4, 20.0), (8, 19.0), (10, 18.5))
    assert found.evaluated_on == "20 sequences, 2 masks each"
    assert history(folder, experiment, until=8).final == 19.0
