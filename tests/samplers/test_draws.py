"""Draws have the distribution that they say, tails included."""

import pytest
import torch
from scipy.stats import chisquare

from atat_zoo.diffusion.randomness import fold
from atat_zoo.samplers.draw import (
    CategoricalDraw,
    ConfidenceTemperedDraw,
    GreedyLastDraw,
    MinPDraw,
    NucleusDraw,
    TopKDraw,
)
from atat_zoo.testing.sampling import assemble, check_draw, example_step, traced
from atat_zoo.testing.toys import Hashed

STEP = example_step(frozenset({"history"}), rows=2)
STEP.history = torch.tensor([[torch.nan, 0.2, 0.4], [torch.nan, torch.nan, 1.0]], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        NucleusDraw(p=1e-9, temperature=1e-3),
        NucleusDraw(temperature=0.0),
        MinPDraw(temperature=0.0),
        GreedyLastDraw(draw=GreedyLastDraw(draw=ConfidenceTemperedDraw())),
    ],
    ids=str,
)
def test_conformance_of_extremes(draw):
    check_draw(draw, 10)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (CategoricalDraw(), [0.5, 0.3, 0.1, 0.1]),
        (CategoricalDraw(temperature=0.5), [25 / 36, 9 / 36, 1 / 36, 1 / 36]),
        (TopKDraw(k=2), [5 / 8, 3 / 8, 0, 0]),
        (TopKDraw(k=2, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (NucleusDraw(p=0.75), [5 / 8, 3 / 8, 0, 0]),
        (NucleusDraw(p=0.85), [0.5, 0.3, 0.1, 0.1]),
        # 25/36 + 9/36 reach 0.9 when tempered.
        (NucleusDraw(p=0.9, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (MinPDraw(p=0.5), [5 / 8, 3 / 8, 0, 0]),
        # 0.3 stays: (3/5)² = 0.36 when tempered; (1/5)² does not reach 0.05.
        (MinPDraw(p=0.05, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
    ],
    ids=str,
)
def test_frequencies(draw, expected):
    n = 50_000
    log_probs = torch.tensor([0.5, 0.3, 0.1, 0.1]).log().expand(n, 4)
    drawn = draw(log_probs, fold(torch.arange(n), 9), example_step(frozenset()), torch.zeros(n, dtype=torch.int64))
    counts, p = torch.bincount(drawn, minlength=4), torch.tensor(expected, dtype=torch.float64)
    assert counts[p == 0].sum() == 0
    assert chisquare(counts[p > 0].numpy(), (p[p > 0] * n).numpy()).pvalue > 0.001


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


def test_the_temperature_follows_the_running_confidence():
    n = 200_000
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    rows = torch.arange(n) % 2
    draw = ConfidenceTemperedDraw(sure=0.5, unsure=1.5, window=2)
    drawn = draw(p.log().expand(n, 3), fold(torch.arange(n), 5), STEP, rows)
    # Running confidences 0.3 (the NaN is out of the window) and 1.
    for row, temperature in enumerate([1.5 - 0.3, 0.5]):
        counts = torch.bincount(drawn[rows == row], minlength=3).double()
        expected = (p.log() / temperature).softmax(0) * n / 2
        assert chisquare(counts.numpy(), expected.numpy()).pvalue > 0.001
