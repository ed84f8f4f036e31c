"""Draws are exact, tails included."""

import pytest
import torch
from scipy.stats import chisquare

from atat_zoo.diffusion.randomness import fold
from atat_zoo.samplers.draw import CategoricalDraw, ConfidenceTemperedDraw
from atat_zoo.testing.sampling import check_draw, example_step

STEP = example_step(frozenset({"history"}), rows=2)
STEP.history = torch.tensor([[torch.nan, 0.2, 0.4], [torch.nan, torch.nan, 1.0]], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [CategoricalDraw(), CategoricalDraw(temperature=0.3), CategoricalDraw(temperature=0), ConfidenceTemperedDraw()],
)
def test_conformance(draw):
    check_draw(draw)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_are_the_probabilities(temperature):
    n = 400_000
    # From 1/2 down to 2^-14: the rarest is expected 25 times.
    logits = -torch.arange(1, 15).double() * torch.log(torch.tensor(2.0)) * min(temperature, 1.0)
    p = (logits / temperature).softmax(0)
    drawn = CategoricalDraw(temperature=temperature)(
        logits.expand(n, -1), fold(torch.arange(n), 3), STEP, torch.zeros(n)
    )
    counts = torch.bincount(drawn, minlength=len(p)).double()
    assert chisquare(counts.numpy(), (p * n).numpy()).pvalue > 0.001


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


def test_a_low_temperature_does_not_underflow():
    log_probs = torch.tensor([[-900.0, -901.0]])
    assert CategoricalDraw(temperature=1e-3)(log_probs, torch.tensor([12345]), STEP, torch.zeros(1)).tolist() == [0]


def test_out_of_range():
    with pytest.raises(ValueError, match="temperature must be at least 0"):
        CategoricalDraw(temperature=-1.0)
    with pytest.raises(ValueError, match="sure must be greater than 0"):
        ConfidenceTemperedDraw(sure=0.0)
