"""Differences, their intervals, and the choice of a point: by hand."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo
from atat_zoo.evaluation.ngram_likelihood import NGramPriorNats
from atat_zoo.evaluation.results.intervals import of_seeds_and_sequences, paired
from atat_zoo.experiment import from_table
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.studies import markdown, run_measurement, runner, study_results
from atat_zoo.studies.differences import NOT_WORSE
from atat_zoo.studies.run_measurement import Measured, rows_of
from atat_zoo.system.environment import machine


@given(total=st.integers(0, 400), limit=st.integers(0, 300), other=st.integers(0, 300))
def test_no_sequence_is_in_both_halves(total, limit, other):
    """Whatever two studies are set to: what one selects on, no other makes claims on."""
    select, claim = rows_of("selection", total, limit).tolist(), rows_of("claim", total, other).tolist()
    for rows, least, most in (select, 0, limit), (claim, 1, other):
        assert rows == sorted(set(rows) & set(range(least, total, 2)))
        assert len(rows) == min(most or total, (total + 1 - least) // 2)
    halves = torch.cat([rows_of(part, total, 0) for part in ("selection", "claim")])
    assert halves.sort().values.tolist() == list(range(total)) == rows_of("test", total, 0).tolist()


COUNT = torch.full((40,), 10)
# How runs were trained: beside nothing.
ALONE = {f"{arm}{seed}": [{"jobs": 1, "threads": 1, "alone": True}] for arm in "ab" for seed in range(9)}
NOISE = torch.linspace(-1, 1, 40, dtype=torch.float64)


def run_of(
    tmp_path, name, seed, nats, *, text="x", seconds=2.0, steps=4, arm="a", point=None, bound="nelbo", compared=None
):
    """Return a measured run whose training took these seconds and steps."""
    folder = RunFolder(tmp_path / name)
    line = {"step": steps, "tokens": 100, "tokens_per_second": 100 / seconds, "peak_memory": 50}
    folder.path.mkdir(exist_ok=True)
    folder.metrics.write_text(json.dumps(line) + "\n")
    experiment = from_table({"name": name, "seed": seed})
    about = {"name": name, "arm": arm, "seed": seed, "point": point, "experiment": experiment, "finished": True}
    about["bound"] = compared
    run = SimpleNamespace(folder=folder, path=folder.path, **about)
    about = {"run": run, "weights": "", "text": text, "step": steps, "method": "exact_k"}
    return Measured(
        **about,
        nats={bound: torch.as_tensor(nats, dtype=torch.float64).expand(40) * COUNT},
        count=COUNT,
        bytes=COUNT,
        ngram=NGramPriorNats(reads="two neighbours", counted=3, nats=5.0 * COUNT.double()),
        parameters=7,
        without_embeddings=3,
    )


def test_each_arm_is_set_beside_the_count_table(tmp_path):
    runs = {seed: run_of(tmp_path, f"r{seed}", seed, 5 + shift) for seed, shift in ((1, -0.1), (2, -0.3))}
    tables = [study_results._run_table(each, {})["ngram_prior"] for each in runs.values()]
    assert [table["value"] for table in tables] == pytest.approx([math.exp(5)] * 2)
    assert [table["difference"] for table in tables] == pytest.approx([-0.1, -0.3])
    assert markdown._n_gram([{"ngram_prior": table} for table in tables]) == "148.41 (-18.1 %)"  # e^−0.2
    assert markdown._n_gram([{"ngram_prior": tables[0]}, {"ngram_prior": None}]) == "—"
    assert markdown._n_gram([{"ngram_prior": tables[0] | {"difference": None}}]) == "148.41 (not finite)"


def test_a_difference_over_seeds_and_over_sequences(tmp_path):
    base = {seed: run_of(tmp_path, f"b{seed}", seed, 4 + NOISE) for seed in (1, 2, 3)}
    arm = {
        seed: run_of(tmp_path, f"a{seed}", seed, 4 + NOISE + shift, seconds=3.0, steps=8)
        for seed, shift in ((1, -0.1), (2, -0.2), (3, -0.3), (4, 9.0))
    }
    found = study_results.compare(arm, base, ALONE)
    assert found["seeds"] == [1, 2, 3]
    assert [each["nats_per_token"] for each in found["each"]] == pytest.approx([-0.1, -0.2, -0.3])
    # The same shift for every sequence: paired, the noise of the sequences is gone.
    assert found["sequences"]["nats_per_token"] == pytest.approx(-0.2)
    assert found["sequences"]["high"] - found["sequences"]["low"] == pytest.approx(0, abs=1e-9)
    half = 0.1 * 4.302653 / math.sqrt(3)
    assert found["both"]["high"] == pytest.approx(-0.2 + half, abs=1e-6)
    assert found["both"]["percent_high"] == pytest.approx(100 * math.expm1(-0.2 + half), abs=1e-4)
    # The interval ends at +4.97 %: better on average, and yet not shown not to be worse.
    assert found["both"]["percent_high"] > NOT_WORSE
    assert found["not_worse"] is False
    ratios = {"steps": 2, "tokens": 1, "seconds": 1.5, "seconds_per_step": 0.75, "peak_memory": 1, "parameters": 1}
    assert found["ratios"] == pytest.approx(ratios)


@pytest.mark.parametrize(
    ("shifts", "not_worse"),
    [
        ((0.009899, 0.009900), True),  # +0.995 %, and as much as nothing around it
        ((0.0101, 0.010101), False),  # +1.015 %
        ((0.0098, 0.0099), False),  # 12.7 × 0.00005 more
        ((0.0,), None),
        ((0.0, 0.0), None),  # nothing is known of another seed
        ((-0.1, math.nan), False),
        ((NOISE, NOISE + 1e-6), False),  # zero over seeds, and more than 10 % over sequences
    ],
)
def test_not_worse_means_an_upper_end_within_one_percent(tmp_path, shifts, not_worse):
    base = {seed: run_of(tmp_path, f"b{seed}", seed, 4.0) for seed in range(len(shifts))}
    arm = {seed: run_of(tmp_path, f"a{seed}", seed, 4.0 + shift) for seed, shift in enumerate(shifts)}
    assert study_results.compare(arm, base, {})["not_worse"] is not_worse


def test_what_cannot_be_compared_is_said(tmp_path):
    base = {1: run_of(tmp_path, "b", 1, 4.0)}
    assert "no common seed" in study_results.compare({2: run_of(tmp_path, "a", 2, 4.0)}, base, {})["problem"]
    for other, problem in (({"text": "y"}, "different held-out tokens"), ({"bound": "other"}, "no bound 'nelbo'")):
        assert problem in study_results.compare({1: run_of(tmp_path, "a", 1, 4.0, **other)}, base, {})["problem"]


def test_an_arm_may_be_compared_by_another_bound(tmp_path):
    base = {1: run_of(tmp_path, "b", 1, 4.0)}
    found = study_results.compare({1: run_of(tmp_path, "a", 1, 3.8, bound="sets", compared="sets")}, base, {})
    assert found["bound"] == "sets bound"
    assert found["sequences"]["nats_per_token"] == pytest.approx(-0.2)
    assert (
        study_results._run_table(run_of(tmp_path, "a", 1, 3.8, bound="sets", compared="sets"), {})["bound"]
        == "sets bound"
    )
    none = {1: run_of(tmp_path, "a", 1, 3.8, bound="sets", compared="set")}
    assert study_results.compare(none, base, {})["problem"] == "no bound 'set' (bounds: sets)"


def test_a_step_multiplier_is_read_from_the_curve_of_the_baseline(tmp_path):
    study = SimpleNamespace(baseline="b", at_budgets=lambda arm: ["b", "b-100", "b-400"])
    # ln 2 steps are worth 0.1 nats at first, and 0.05 then.
    curve = {"b-100": (100, 4.0), "b": (200, 3.9), "b-400": (400, 3.85)}
    measured = {
        arm: {seed: run_of(tmp_path, f"{arm}{seed}", seed, nats, steps=steps) for seed in (1, 2)}
        for arm, (steps, nats) in curve.items()
    }
    for arm, steps, nats in (("same", 200, (3.9, 3.9)), ("good", 100, (3.95, 3.875)), ("far", 200, (3.9, 3.8))):
        measured[arm] = {
            seed: run_of(tmp_path, f"{arm}{seed}", seed, value, steps=steps) for seed, value in enumerate(nats, 1)
        }
    measured["poor"] = {2: run_of(tmp_path, "poor2", 2, 4.1, steps=50), 3: run_of(tmp_path, "poor3", 3, 4.1)}
    same, good, far, poor = study_results.multipliers(study, measured)
    assert [one["multiplier"] for one in same["each"]] == pytest.approx([1, 1])
    assert [one["multiplier"] for one in good["each"]] == pytest.approx([math.sqrt(2), 2 * math.sqrt(2)])
    assert good["both"]["value"] == pytest.approx(2)
    assert good["both"]["low"] < 1 < 4 < good["both"]["high"]
    assert far["each"][1] == {"seed": 2, "multiplier": 2, "where": "beyond"}
    assert far["both"] is None
    assert poor["each"] == [{"seed": 2, "multiplier": 2, "where": "before"}]
    assert "| far | 1: 1.00, 2: > 2.00 | — |" in markdown._multipliers([same, good, far, poor]).to_markdown()
    assert study_results.multipliers(study, {arm: measured[arm] for arm in ("b", "b-100", "same")}) == []
    assert (
        study_results.multipliers(study, measured | {"same": {1: run_of(tmp_path, "z", 1, 3.9, text="y")}})[0]
        is not same
    )
    # What is not finite, or a curve that rises, tells nothing.
    for other in ({"b": math.inf}, {"b": 4.1}, {"same": math.nan}):
        (arm, nats), steps = next(iter(other.items())), 200
        changed = measured | {arm: {1: run_of(tmp_path, "other", 1, nats, steps=steps)}}
        (found, *_) = study_results.multipliers(study, changed)
        assert (found["each"], found["both"]) == ([{"seed": 1, "multiplier": None, "where": "unknown"}], None)
        assert "| same | 1: — | — |" in markdown._multipliers([found]).to_markdown()


def test_a_step_multiplier_has_the_chance_of_seeds_and_of_sequences(tmp_path):
    """The sequences of arm and curve are resampled together, and are the same for every seed."""
    study = SimpleNamespace(baseline="b", at_budgets=lambda arm: ["b", "b-100", "b-400"])
    steps = {"b-100": 100, "b": 200, "b-400": 400, "a": 200}
    nats = {"b-100": 4.0 + 0 * NOISE, "b": 3.9 + 0 * NOISE, "b-400": 3.8 + 0 * NOISE, "a": 3.9 + 0.05 * NOISE}
    measured = {
        arm: {
            s: run_of(tmp_path, f"{arm}{s}", s, of + (0.01 * s if arm == "a" else 0), steps=steps[arm]) for s in (1, 2)
        }
        for arm, of in nats.items()
    }
    (found,) = study_results.multipliers(study, measured)
    # ln m is linear in the nats of this curve, ln 2 for 0.1 nats.
    slope = -math.log(2) / 0.1
    zero = torch.zeros(40)
    sequences = paired(zero, (0.05 * NOISE + 0.015) * COUNT, COUNT)
    each = [one.value for one in (paired(zero, torch.full((40,), shift * 10.0), COUNT) for shift in (0.01, 0.02))]
    both = of_seeds_and_sequences(each, sequences)
    for key in ("value", "low", "high"):
        assert math.log(found["both"][key]) == pytest.approx(-slope * getattr(both, key), rel=1e-6)


def test_the_best_point_of_the_sweep_and_whether_it_lies_at_an_end(tmp_path):
    study = SimpleNamespace(sweep=SimpleNamespace(points={"low": (), "middle": (), "high": ()}), swept=["a", "b", "c"])
    nats = {"a": {"low": 3.0, "middle": 2.9, "high": 3.1}, "b": {"low": 3.0, "middle": 2.9, "high": 2.8}}
    nats["c"] = {"low": math.nan}
    measured = [
        run_of(tmp_path, f"{arm}-{point}", 17, value, arm=arm, point=point)
        for arm, each in nats.items()
        for point, value in each.items()
    ]
    found = study_results.choices(study, measured)
    chosen = {arm: (each["chosen"], each["at_an_end"]) for arm, each in found.items()}
    assert chosen == {"a": ("middle", False), "b": ("high", True)}
    assert found["a"]["nats_per_token"] == pytest.approx(nats["a"])


def test_steps_that_take_the_seconds_of_another_arm(tmp_path):
    arms = {"same": SimpleNamespace(like="slow", match_seconds="base")}
    base = [run_of(tmp_path, f"b{i}", i, 1.0, seconds=s, steps=100).run for i, s in enumerate((9.0, 10.0, 30.0))]
    slow = [run_of(tmp_path, f"s{i}", i, 1.0, seconds=s, steps=100).run for i, s in enumerate((12.5, 12.4, 90.0))]
    steps = study_results.steps_in_the_time_of
    # 10 seconds, of which a step takes an eighth.
    assert steps(SimpleNamespace(arms=arms), "same", {"base": base, "slow": slow}) == 80
    assert steps(SimpleNamespace(arms=arms), "same", {"base": base}) is None
    for run in slow:
        run.finished = False
    assert steps(SimpleNamespace(arms=arms), "same", {"base": base, "slow": slow}) is None


@pytest.fixture
def one_gpu(monkeypatch):
    """One GPU, whose name may change."""
    names = ["A GPU"]
    for name, answer in (("is_available", True), ("device_count", 1)):
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: names[0])
    return names


def test_a_time_is_of_a_gpu_and_a_bound_of_none(tmp_path, monkeypatch, one_gpu):
    """With another GPU the times are taken again, and said to be of that one; the bounds are not."""
    taken = []
    run = run_of(tmp_path, "a", 1, 4.0).run
    (tmp_path / "a" / "model").mkdir()
    (tmp_path / "a" / "evaluations").mkdir()
    (tmp_path / "a" / "model" / "model.safetensors").write_bytes(b"weights")
    sampler = Zoo.load().spec("sampler", "ancestral")
    spec = SimpleNamespace(each=[sampler], texts=1, repeat=1, sequences=2, orders=1)
    study = SimpleNamespace(samplers=spec, held_out=SimpleNamespace(half="claim", seed=0))
    bounds = {"count": [1], "nats": [[1.0]], "nfe": [1.0], "brackets": [[[1.0], [1.0]]]}
    monkeypatch.setattr(run_measurement, "_time", lambda *_: taken.append("time") or {"seconds": [1.0]})
    monkeypatch.setattr(run_measurement, "_bound", lambda *_: taken.append("price") or bounds)
    for one_gpu[0], device in (("A GPU", "auto"), ("A GPU", "gpu"), ("Another", "auto"), ("Another", "cpu")):
        (written,) = run_measurement.write_all(study, run, device=device)
        assert written.on["device"] == ("cpu" if device == "cpu" else one_gpu[0])
    assert taken == ["time", "price", "time", "time"]


@pytest.mark.parametrize(
    ("wanted", "there", "known"),
    [("auto", "A GPU", True), ("auto", "Another", False), ("auto", "cpu", False), ("cpu", "cpu", True)],
)
def test_the_time_of_a_step_is_known_of_the_device_that_would_take_it(tmp_path, one_gpu, wanted, there, known):
    run = run_of(tmp_path, "a", 1, 4.0, seconds=2.0, steps=4).run
    run.experiment = from_table({"name": "x", "train": {"device": wanted}})
    environment = {"machine": machine(), "computes": {"device": there, "precision": "fp32", "ranks": 1}}
    (tmp_path / "a" / "environment.json").write_text(json.dumps(environment))
    assert runner._seconds_per_step(run) == (pytest.approx(0.5) if known else None)
