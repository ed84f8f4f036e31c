"""NLL of gaps: what a cache of it depends on, and the bracket of a bound by random orders."""

import json
from types import SimpleNamespace

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.evaluation.policy import bracket_value
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.modeling.diffusion.bracket import Bracket
from atat_zoo.studies import gaps, markdown, measuring, results

ZOO = Zoo.load()
RANDOM = ZOO.spec("sampler", {"use": "combination", "order": "random", "pace": "one_at_a_time"})
STRIDED = ZOO.spec("sampler", "strided")
HELD = SimpleNamespace(half="claim", seed=0, bound=ZOO.spec("bound", "exact_k"), draws=1)


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
    monkeypatch.setattr(gaps, "_measure", lambda *given: taken.append(given[4]) or table)

    def price(sampler, **changes):
        study = SimpleNamespace(held_out=HELD, gaps=spec(**changes))
        before = len(taken)
        found = gaps._price(study, run, sampler, "cpu", lambda _: None)
        assert float(found.nats["the whole"]) == 1.0
        return len(taken) - before

    assert [price(RANDOM), price(RANDOM)] == [1, 0]
    for other in ({"orders": 4}, {"random_sequences": 3}, {"lengths": (8,)}):
        assert [price(RANDOM, **other), price(RANDOM, **other)] == [1, 0], other
    # A deterministic order is one, on all sequences; the bound has none.
    for sampler in (STRIDED, None):
        assert [price(sampler), price(sampler, orders=4), price(sampler, random_sequences=3)] == [1, 0, 0]
        assert price(sampler, sequences=5) == 1


def test_a_policy_bound_is_measured_again_with_other_orders_or_sequences_only(run, monkeypatch):
    taken = []
    bounds = {"count": [1], "nats": [[1.0]], "nfe": [1.0], "brackets": [[[None], [1.0]]]}
    monkeypatch.setattr(measuring, "_time", lambda *_: {"seconds": [1.0]})
    monkeypatch.setattr(measuring, "_bound", lambda *_: taken.append(1) or bounds)
    for changes, times in (({}, 1), ({}, 1), ({"orders": 4}, 2), ({"sequences": 5}, 3), ({"orders": 4}, 3)):
        study = SimpleNamespace(held_out=HELD, samplers=spec(**changes))
        (written,) = measuring.write_all(study, run)
        assert len(taken) == times
        assert written.bracket.lower.tolist() == [-torch.inf]


def ends(upper, lower, effective=2.2):
    return Bracket(*(torch.tensor([value] * 3).double() for value in (upper, lower, effective)))


def test_a_bracket_that_says_nothing_is_not_shown():
    count = torch.tensor([10, 10, 10])
    assert bracket_value(ends(40.0, 30.0), count).value == pytest.approx(torch.tensor(3.0).exp())
    # No probability is above one: a truth above less than zero nats is nothing new.
    for lower in (-0.001, -1e9, -torch.inf, torch.nan):
        assert bracket_value(ends(40.0, lower), count) is None
    assert bracket_value(ends(40.0, 0.0), count) is not None
    wide = Bracket(torch.tensor([40.0, 40.0, 40.0]), torch.tensor([39.0, 39.0, 0.0]), torch.ones(3))
    assert bracket_value(wide, count).width_stderr < bracket_value(wide, count).width


def test_a_bound_by_random_orders_has_a_bracket_and_its_effective_orders():
    count = torch.tensor([10, 10, 10])
    tables = [results.bracket_table(each, count) for each in (ends(40.0, 36.86), ends(40.0, -1.0, 1.04))]
    row = {"values": [54.6, 55.4], "quantity": "policy bound", "brackets": json.loads(json.dumps(tables))}
    said = markdown._values(row, ".1f")
    assert said == ("54.6 (the truth is above 39.9; 2.2 effective orders), 55.4 (no bracket; 1.0 effective orders)")
    del row["brackets"]
    assert markdown._values(row, ".1f") == "54.6, 55.4 (no bracket recorded)"
    assert markdown._values(row | {"quantity": "policy likelihood"}, ".1f") == "54.6, 55.4"


def test_the_nats_of_each_price_are_kept(run):
    nats, count = {"the whole": torch.tensor([1.23456, torch.inf])}, {"the whole": torch.tensor([3, 4])}
    priced = gaps.Priced(run=run, by={"use": "strided"}, quantity="policy likelihood", nats=nats, count=count)
    about = {"part": "gaps", "arm": "a", "seed": 1, "by": {"use": "strided"}, "what": "the whole"}
    (line,) = gaps.nats_of({"a": [[priced]]})
    assert line == about | {"nats": [pytest.approx(1.2346), None], "tokens": [3, 4]}


def test_two_prices_are_compared_on_the_sequences_that_both_have(run):
    def price(arm, *nats):
        values = torch.tensor(nats, dtype=torch.float64)
        about = {"by": None, "quantity": "bound", "nats": {"it": values}, "count": {"it": torch.full((len(nats),), 2)}}
        return gaps.Priced(run=SimpleNamespace(arm=arm, seed=1), **about)

    mine, theirs = [price("a", 1.0, 2.0)], [price("b", 3.0, 6.0, 900.0)]
    for one, other, nats in ((mine, theirs, -1.5), (theirs, mine, 1.5)):
        row = gaps._row("a", one, [other], "it")
        assert row["against"][0]["sequences"]["nats_per_token"] == pytest.approx(nats)
        assert row["sequences"] == len(one[0].count["it"])
