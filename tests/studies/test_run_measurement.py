"""What is measured on runs and kept: gaps, samplers, and the brackets of bounds by random orders."""

import json
from types import SimpleNamespace

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.data.sequences import evenly
from atat_zoo.diffusion.bracket import Bracket
from atat_zoo.evaluation.policy import bracket_value
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.studies import markdown, run_measurement, study_results
from atat_zoo.studies.run_measurement import Priced

ZOO = Zoo.load()
RANDOM = ZOO.spec("sampler", {"use": "combination", "order": "random", "tokens_per_step": "one_at_a_time"})
STRIDED = ZOO.spec("sampler", "strided")
HELD = SimpleNamespace(half="claim", seed=0, bound=ZOO.spec("bound", "exact_k"), mask_samples=1)
TOKENS = torch.arange(12)[:, None].expand(12, 4)


@pytest.fixture
def run(tmp_path):
    for folder in ("model", "evaluations"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return SimpleNamespace(folder=RunFolder(tmp_path), path=tmp_path, name="a-seed1", arm="a", seed=1)


def spec(**changes):
    about = {"each": [RANDOM], "of_baseline": (), "lengths": (4,), "sequences": 6, "random_sequences": 4, "orders": 2}
    return SimpleNamespace(**about | {"texts": 1, "repeat": 1} | changes)


def test_a_price_is_measured_again_under_other_settings_only(run, monkeypatch):
    taken = []
    table = {"nats": {"the whole": [1.0]}, "count": {"the whole": [2]}, "bracket": {"the whole": [[0.5], [1.5]]}}
    monkeypatch.setattr(run_measurement, "_measure_gaps", lambda *given: taken.append(given[3]) or table)

    def price(sampler, **changes):
        study, before = SimpleNamespace(held_out=HELD, gaps=spec(**changes)), len(taken)
        found = run_measurement._price(study, run, sampler, "cpu", lambda _: None)
        assert float(found.nats["the whole"]) == 1.0
        assert (found.brackets.get("the whole") is not None) == (sampler is RANDOM)
        return len(taken) - before

    assert [price(RANDOM), price(RANDOM)] == [1, 0]
    for other in ({"orders": 4}, {"random_sequences": 3}, {"lengths": (8,)}):
        assert [price(RANDOM, **other), price(RANDOM, **other)] == [1, 0], other
    # A deterministic order is one, on all sequences; the bound has none.
    for sampler in (STRIDED, None):
        assert [price(sampler), price(sampler, orders=4), price(sampler, random_sequences=3)] == [1, 0, 0]
        assert price(sampler, sequences=5) == 1
    assert taken[0] == 4


def test_a_policy_bound_is_measured_again_with_other_orders_or_sequences_only(run, monkeypatch):
    taken = []
    bounds = {"count": [1], "nats": [[1.0]], "nfe": [1.0], "brackets": [[[None], [1.0]]]}
    monkeypatch.setattr(run_measurement, "_time", lambda *_: {"seconds": [1.0]})
    monkeypatch.setattr(run_measurement, "_bound", lambda *_: taken.append(1) or bounds)
    for changes, times in (({}, 1), ({}, 1), ({"orders": 4}, 2), ({"sequences": 5}, 3), ({"orders": 4}, 3)):
        (written,) = run_measurement.write_all(SimpleNamespace(held_out=HELD, samplers=spec(**changes)), run)
        assert len(taken) == times
        assert (written.bracket.lower.tolist(), written.quantity) == ([-torch.inf], "policy bound")


@pytest.mark.parametrize(("n", "shown"), [(12, list(range(12))), (4, [0, 3, 6, 9]), (5, evenly(12, 5).tolist())])
def test_samplers_of_random_orders_pay_for_fewer_sequences_that_are_spread_over_the_others(monkeypatch, n, shown):
    data = SimpleNamespace(format="text")
    model = SimpleNamespace(tokenizer=SimpleNamespace(eos=None), text_generator=lambda precision: None)
    model.experiment = SimpleNamespace(
        data=data, parts={"guidance": SimpleNamespace(guide=lambda text_generator: text_generator)}
    )
    monkeypatch.setattr(run_measurement, "Model", SimpleNamespace(from_run=lambda *_: model))
    monkeypatch.setattr(run_measurement, "build", lambda experiment: None)
    monkeypatch.setattr(run_measurement, "text_of", lambda *_: (torch.arange(12), TOKENS, torch.ones_like(TOKENS) > 0))
    monkeypatch.setattr(run_measurement, "evolve", lambda spec, **_: spec)
    seen = []

    def measure_policy(text_generator, sampler, tokens, maskable, **how):
        seen.append(tokens[:, 0].tolist())
        return SimpleNamespace(nats=tokens[:, 0].double(), ends=())

    monkeypatch.setattr(run_measurement, "measure_policy", measure_policy)
    held = SimpleNamespace(half="selection", seed=0, batch_size=4)
    gaps = SimpleNamespace(sequences=12, orders=2, lengths=(2,))
    study = SimpleNamespace(held_out=held, gaps=gaps, spec=lambda split: None)
    counts = run_measurement._measure_gaps(study, SimpleNamespace(path="run"), RANDOM, n, "cpu")["count"]
    assert counts["a gap of 2"] == [2] * n
    assert seen[0] == shown


def priced(arm, n, by=None):
    numbers = torch.from_numpy(evenly(12, n))
    nats, count = {"the whole": numbers.double() ** 2}, {"the whole": 1 + numbers % 5}
    return Priced(run=SimpleNamespace(arm=arm, seed=1), by=by, quantity="bound", nats=nats, count=count)


def test_two_prices_are_compared_on_the_sequences_that_both_have():
    few = {"use": "random"}
    prices = {"one": [[priced("one", 12), priced("one", 5, few)]], "other": [[priced("other", 12)]]}
    (found,) = study_results.gap_tables(SimpleNamespace(baseline="one"), prices)
    against = [each for row in found["rows"] for each in row["against"]]
    assert (len(against), [row["sequences"] for row in found["rows"]]) == (4, [12, 5, 12])
    assert all(each["percent"] == 0 for row in against for each in row["each"])
    assert {each["by"] and each["by"]["use"] for each in against} == {None, "random"}
    (alone,) = study_results.gap_tables(SimpleNamespace(baseline="one"), {"one": [[priced("one", 12)]]})
    assert (alone["what"], len(alone["rows"])) == ("the whole", 1)
    assert study_results.gap_tables(SimpleNamespace(baseline="one"), {}) == []
    line = next(study_results.nats_of_gaps(prices))
    assert {key: line[key] for key in ("part", "arm", "seed", "by", "what")} == {
        "part": "gaps", "arm": "one", "seed": 1, "by": None, "what": "the whole",
    }  # fmt: skip
    assert line["nats"] == [float(i**2) for i in range(12)]
    nats = torch.tensor([1.23456, torch.inf])
    assert study_results.kept_nats(nats, torch.tensor([3, 4])) == {"nats": [1.2346, None], "tokens": [3, 4]}


def ends(upper, lower, effective=2.2):
    return Bracket(*(torch.tensor([value] * 3).double() for value in (upper, lower, effective)))


def test_a_bracket_that_says_nothing_is_not_shown():
    count = torch.tensor([10, 10, 10])
    assert bracket_value(ends(40.0, 30.0), count).value == pytest.approx(torch.tensor(3.0).exp())
    # No probability is above one: a truth above less than zero nats is nothing new.
    for lower in (-0.001, -1e9, -torch.inf, torch.nan):
        assert bracket_value(ends(40.0, lower), count) is None
    assert bracket_value(ends(40.0, 0.0), count).value == pytest.approx(1.0)
    wide = Bracket(torch.tensor([40.0, 40.0, 40.0]), torch.tensor([39.0, 39.0, 0.0]), torch.ones(3))
    assert bracket_value(wide, count).width_stderr < bracket_value(wide, count).width
    tables = [study_results.bracket_table(each, count) for each in (ends(40.0, 36.86), ends(40.0, -1.0, 1.04))]
    row = {"values": [54.6, 55.4], "quantity": "policy bound", "brackets": json.loads(json.dumps(tables))}
    said = markdown._values(row, ".1f")
    assert said == "54.6 (lower limit 39.9; 2.2 effective orders), 55.4 (no lower limit; 1.0 effective orders)"
    del row["brackets"]
    assert markdown._values(row, ".1f") == "54.6, 55.4 (no lower limit recorded)"
    assert markdown._values(row | {"quantity": "policy likelihood"}, ".1f") == "54.6, 55.4"


def test_samplers_are_timed_on_the_device_that_is_asked_for(run, monkeypatch):
    taken = []
    model = SimpleNamespace(sample=lambda number, sampler: SimpleNamespace(seconds=float(number)))
    monkeypatch.setattr(run_measurement.Model, "from_run", lambda *given: taken.append(given) or model)
    timed = run_measurement._time(spec(texts=3, repeat=2), run, "a device", lambda _: None)
    assert (taken, timed) == ([(run.path, "a device")], {"seconds": [3.0]})
