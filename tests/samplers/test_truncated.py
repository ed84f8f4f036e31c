"""Draws that cut off the tail, and the one that is greedy at the end."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from atat_zoo.diffusion import categorical as truncation
from atat_zoo.diffusion.categorical import nucleus, top_k
from atat_zoo.diffusion.randomness import fold
from atat_zoo.samplers.draw import CategoricalDraw, ConfidenceTemperedDraw, GreedyLastDraw, NucleusDraw, TopKDraw
from atat_zoo.testing.sampling import assemble, check_draw, example_step, traced
from atat_zoo.testing.toys import Hashed

WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=9).filter(any)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        TopKDraw(k=1),
        TopKDraw(k=3, temperature=0.5),
        TopKDraw(k=2, temperature=0.0),
        NucleusDraw(p=0.5),
        NucleusDraw(p=1.0, temperature=2.0),
        NucleusDraw(p=1e-9, temperature=1e-3),
        NucleusDraw(temperature=0.0),
        GreedyLastDraw(draw=ConfidenceTemperedDraw()),
        GreedyLastDraw(draw=GreedyLastDraw(draw=NucleusDraw())),
    ],
    ids=str,
)
def test_conformance(draw):
    check_draw(draw)


@given(WEIGHTS, st.integers(1, 10))
def test_the_k_likeliest_and_their_equals_stay(weights, k):
    kept = top_k(torch.tensor([weights]).double().log(), k)[0] > -torch.inf
    least = sorted(weights, reverse=True)[min(k, len(weights)) - 1]
    assert kept.tolist() == [w >= least and w > 0 for w in weights]


@given(WEIGHTS, st.floats(1e-6, 1.0), st.floats(0.05, 3.0))
def test_the_nucleus_is_the_fewest_that_reach_p(weights, p, temperature):
    log_probs = torch.tensor([weights]).double().log()
    kept = nucleus(log_probs, p, temperature)[0] > -torch.inf
    probs = (log_probs[0] / temperature).softmax(0)
    within, without = probs[kept], probs[~kept]
    assert p == 1 or within.sum() >= p - 1e-9
    # Without its least likely ones it would not reach p.
    assert p == 1 or within[within > within.min()].sum() < p + 1e-9
    assert not len(without) or within.min() > without.max() or without.max() == 0
    # What stays is not changed.
    assert torch.equal(nucleus(log_probs, p, temperature)[0][kept], log_probs[0][kept])


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_many_nuclei_are_found_in_parts(rows, monkeypatch):
    log_probs = torch.randn(rows, 10, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    at_once = nucleus(log_probs, 0.6)
    monkeypatch.setattr(truncation, "_AT_ONCE", 25)
    assert torch.equal(nucleus(log_probs, 0.6), at_once)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (TopKDraw(k=2), [5 / 8, 3 / 8, 0, 0]),
        (TopKDraw(k=2, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (NucleusDraw(p=0.75), [5 / 8, 3 / 8, 0, 0]),
        (NucleusDraw(p=0.85), [0.5, 0.3, 0.1, 0.1]),
        # 25/36 + 9/36 reach 0.9 when tempered.
        (NucleusDraw(p=0.9, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
    ],
    ids=str,
)
def test_frequencies(draw, expected):
    n = 50_000
    log_probs = torch.tensor([0.5, 0.3, 0.1, 0.1]).log().expand(n, 4)
    drawn = draw(log_probs, fold(torch.arange(n), 9), example_step(frozenset()), torch.zeros(n, dtype=torch.int64))
    counts = torch.bincount(drawn, minlength=4).double()
    found = torch.tensor(expected, dtype=torch.float64) > 0
    assert counts[~found].sum() == 0
    assert chisquare(counts[found].numpy(), (torch.tensor(expected).double()[found] * n).numpy()).pvalue > 0.001


def test_only_the_last_step_is_greedy():
    z, seeds = torch.full((40, 8), 6), torch.arange(40)
    plain, greedy = assemble(draw=CategoricalDraw()), assemble(draw=GreedyLastDraw(draw=CategoricalDraw()))
    (_, first), (_, second) = (traced(s, Hashed(6), z, seeds) for s in (plain, greedy))
    last = max(record["step"] for record in first)
    assert [r for r in first if r["step"] < last] == [r for r in second if r["step"] < last]
    before = z.clone()
    for record in second:
        if record["step"] == last:
            rows, positions = torch.tensor(record["rows"]), torch.tensor(record["positions"])
            best = Hashed(6)(before, None, (rows, positions)).argmax(-1)
            assert record["tokens"] == best.tolist()
        before[record["rows"], record["positions"]] = torch.tensor(record["tokens"])


def test_out_of_range():
    for make, words in (
        (lambda: TopKDraw(k=0), "k must be at least 1"),
        (lambda: NucleusDraw(p=0.0), "p must be greater than 0"),
        (lambda: NucleusDraw(p=1.1), "p must be at most 1"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
