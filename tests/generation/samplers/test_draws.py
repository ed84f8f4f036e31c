"""Draws have the distribution that they say; conformance holds what is drawn against it, tails included."""

import pytest
import torch

from atat_zoo.generation.samplers.draw import (
    CategoricalDraw,
    ConfidenceTemperedDraw,
    GreedyLastDraw,
    MinPDraw,
    NucleusDraw,
    TopKDraw,
)
from atat_zoo.testing.sampling import example_step

STEP = example_step(frozenset({"history"}), rows=2)  # its third
STEP.history = torch.tensor([[torch.nan, 0.2, 0.4], [torch.nan, torch.nan, 1.0]], dtype=torch.float64)
STEP.most = torch.tensor([3, 4])
P = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64)


def said(draw, row=0):
    """Return the probabilities of the four tokens in a row of the step."""
    rows = torch.full((4,), row)
    return draw.log_prob(torch.arange(4), P.log().expand(4, 4), STEP, rows).exp()


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
        (NucleusDraw(temperature=0.0), [1, 0, 0, 0]),
        (MinPDraw(p=0.5), [5 / 8, 3 / 8, 0, 0]),
        # 0.3 stays: (3/5)² = 0.36 when tempered; (1/5)² does not reach 0.05.
        (MinPDraw(p=0.05, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (MinPDraw(temperature=0.0), [1, 0, 0, 0]),
        # The last of three steps is that of the first row alone.
        (GreedyLastDraw(draw=TopKDraw(k=2)), [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_probabilities(draw, expected):
    assert said(draw).tolist() == pytest.approx(expected, abs=1e-9)


def test_a_row_before_its_last_step_is_not_greedy():
    assert torch.equal(said(GreedyLastDraw(draw=TopKDraw(k=2)), row=1), said(TopKDraw(k=2)))


def test_the_temperature_follows_the_running_confidence():
    # Running confidences 0.3 (the NaN is out of the window) and 1.
    for row, temperature in enumerate([1.5 - 0.3, 0.5]):
        tempered = said(ConfidenceTemperedDraw(sure=0.5, unsure=1.5, window=2), row)
        torch.testing.assert_close(tempered, (P.log() / temperature).softmax(0))


def test_the_draw_before_the_last_step_knows_the_step():
    draw = ConfidenceTemperedDraw(sure=0.5, unsure=1.5, window=2)
    assert torch.equal(said(GreedyLastDraw(draw=draw), row=1), said(draw, row=1))
