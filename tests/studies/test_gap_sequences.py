"""Prices of gaps: samplers of random orders pay for fewer sequences, which are spread over the others."""

from types import SimpleNamespace

import pytest
import torch

from atat_zoo.data.sequences import evenly
from atat_zoo.studies import gaps
from atat_zoo.studies.gaps import Priced, table

RANDOM = SimpleNamespace(name="random", deterministic=False)
TOKENS = torch.arange(12)[:, None].expand(12, 4)


@pytest.fixture
def seen(monkeypatch):
    """Return the numbers of the sequences that a sampler is shown, by n."""
    data = SimpleNamespace(form="text")
    model = SimpleNamespace(tokenizer=SimpleNamespace(eos=None), writer=lambda precision: None)
    model.experiment = SimpleNamespace(data=data, parts={"guidance": SimpleNamespace(guide=lambda writer: writer)})
    monkeypatch.setattr(gaps, "Model", SimpleNamespace(from_run=lambda *_: model))
    monkeypatch.setattr(gaps, "build", lambda experiment: None)
    monkeypatch.setattr(gaps, "text_of", lambda *_: (torch.arange(12), TOKENS, torch.ones_like(TOKENS) > 0))
    monkeypatch.setattr(gaps, "attrs", SimpleNamespace(evolve=lambda spec, **_: spec))
    shown = []

    def measure_policy(writer, sampler, tokens, maskable, **how):
        shown.append(tokens[:, 0].tolist())
        return SimpleNamespace(nats=tokens[:, 0].double(), ends=())

    monkeypatch.setattr(gaps, "measure_policy", measure_policy)

    def of(n):
        shown.clear()
        study = SimpleNamespace(
            held_out=SimpleNamespace(half="selection", seed=0, batch_size=4), spec=lambda split: None
        )
        spec = SimpleNamespace(sequences=12, orders=2, lengths=(2,))
        counts = gaps._measure(study, spec, SimpleNamespace(path="run"), RANDOM, n, "cpu")["count"]
        assert counts["a gap of 2"] == [2] * len(shown[0])
        return shown[0]

    return of


def test_the_fewer_sequences_are_spread_over_all(seen):
    assert seen(12) == list(range(12))
    assert seen(4) == [0, 3, 6, 9]
    assert seen(5) == evenly(12, 5).tolist()


def test_two_prices_are_compared_on_the_same_sequences():
    def priced(arm, n, by=None):
        numbers = torch.from_numpy(evenly(12, n))
        run = SimpleNamespace(arm=arm, seed=1)
        nats, count = {"the whole": numbers.double() ** 2}, {"the whole": 1 + numbers % 5}
        return Priced(run=run, by=by, quantity="bound", nats=nats, count=count)

    study = SimpleNamespace(baseline="one")
    few = {"use": "random"}
    (found,) = table(study, {"one": [[priced("one", 12), priced("one", 5, few)]], "other": [[priced("other", 12)]]})
    against = [each for row in found["rows"] for each in row["against"]]
    assert len(against) == 4
    assert all(each["percent"] == 0 for row in against for each in row["each"])
