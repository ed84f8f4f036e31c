"""Draws that cut off the tail, and the one that is greedy at the end."""

import pytest
import torch
from hypothesis import strategies as st
from scipy.stats import chisquare

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
