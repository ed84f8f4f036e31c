"""Scores and a rate to probabilities, or to as many masked tokens."""

import math
from math import ceil, floor, isclose

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from atat_zoo.diffusion.calibration import (
    count_masked,
    first_masked,
    logit_shift,
    lowest,
    power_path,
    power_time,
    water_fill,
)
from atat_zoo.diffusion.likelihood_bounds import uniform_order
from tests.examples import at_most

FORMS = [water_fill, power_path, logit_shift]


def by_root_finding(form, score, rate):
    """The same p by a general root finder on the definition, for scores that do not overflow."""
    curves = {
        water_fill: lambda c: [min(1.0, math.exp(s + c)) for s in score],
        power_path: lambda c: [math.exp(-math.exp(-c - s)) for s in score],
        logit_shift: lambda c: [1 / (1 + math.exp(-s - c)) for s in score],
    }
    curve = curves[form]
    c = brentq(lambda c: sum(curve(c)) / len(score) - rate, -60, 60, xtol=1e-14)
    return curve(c)


@pytest.mark.parametrize("form", FORMS)
@at_most(15)
@given(score=st.lists(st.floats(-8, 8), min_size=1, max_size=9), rate=st.floats(0.01, 0.99))
def test_agrees_with_a_root_finder_on_the_definition(form, score, rate):
    p = form(torch.tensor([score]), torch.tensor([rate], dtype=torch.float64), torch.ones(1, len(score)) > 0)
    expected = torch.tensor([by_root_finding(form, torch.tensor(score).tolist(), rate)])
    torch.testing.assert_close(p, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@given(seed=st.integers(0, 2**32), length=st.sampled_from([1, 2, 17, 1024]), levels=st.sampled_from([1, 2, 5, 10**6]))
@at_most(10)
def test_the_mean_is_the_rate_for_scores_of_any_size(form, size, seed, length, levels):
    draw = torch.Generator().manual_seed(seed)
    score = torch.randint(levels, (6, length), generator=draw).double() / max(levels - 1, 1) * size
    maskable = torch.rand(6, length, generator=draw) < 0.8
    maskable[0] = False
    rate = torch.rand(6, generator=draw)
    rate[1], rate[2], rate[3], rate[4] = 0.0, 1.0, 1e-7, 1 - 6e-8
    p = form(score, rate, maskable)
    assert p.dtype == torch.float32
    assert bool(((p >= 0) & (p <= 1)).all())
    assert bool((p[~maskable] == 0).all())
    count = maskable.sum(-1)
    mean = p.double().sum(-1) / count.clamp(min=1)
    torch.testing.assert_close(mean, rate.double() * (count > 0), atol=1e-6, rtol=0)
    assert bool((p[1] == 0).all())
    assert bool((p[2][maskable[2]] == 1).all())


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_get_bitwise_equal_p(form):
    draw = torch.Generator().manual_seed(3)
    score = torch.randint(7, (50, 301), generator=draw).float() / 7 / 0.03
    p = form(score, torch.rand(50, generator=draw), torch.ones(50, 301) > 0)
    for row_score, row_p in zip(score, p, strict=True):
        for value in row_score.unique():
            assert len(row_p[row_score == value].unique()) == 1


def test_the_time_of_the_power_path_is_finite_at_both_ends():
    score, maskable = torch.tensor([[0.0, 1.0, -2.0]] * 3), torch.ones(3, 3, dtype=torch.bool)
    time = power_time(score, torch.tensor([0.0, 0.5, 1.0]), maskable)
    assert time.isfinite().all()
    assert (time.diff() < 0).all()


def test_the_count_is_exact_on_average():
    maskable = torch.ones(1, 7, dtype=torch.bool)
    for rate in (0.0, 0.1, 0.5, 1.0):
        grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
        counts = count_masked(torch.full((1,), rate, dtype=torch.float64), maskable, grid)
        assert isclose(float(counts.double().mean()), 7 * rate, abs_tol=1e-9)
        assert set(counts.tolist()) <= {floor(7 * rate), ceil(7 * rate)}
    maskable, rate = torch.arange(6) < torch.tensor([[0], [3], [6]]), torch.full((3,), 0.5)
    assert count_masked(rate, maskable, torch.tensor([0.0, 0.4999, 0.0])).tolist() == [0, 2, 3]
    assert count_masked(rate, maskable, torch.tensor([0.9, 0.5, 0.9])).tolist() == [0, 1, 3]


@given(st.integers(0, 99), st.floats(1, 3), st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_the_lowest_of_the_first_are_hidden(seed, excess, scores):
    maskable = torch.arange(40) < torch.tensor([[40], [25], [0]])
    order, count = uniform_order(maskable, torch.arange(3) + seed), torch.tensor([20, 7, 0])
    hidden = first_masked(order, count, excess, maskable)
    for value in (torch.nan, torch.inf, -torch.inf):  # which changes no count
        mask = lowest(torch.full((3, 40), value), order, count, hidden)
        assert torch.equal(mask.sum(1), count)
        assert not (mask & ~hidden).any()
    scores = torch.tensor(scores).float().expand(3, -1)
    mask = lowest(scores, order, count, hidden)
    for row, n in enumerate((40, 25, 0)):
        k = int(count[row])
        first = sorted(range(40), key=lambda i, row=row: int(order[row, i]))[: min(n, ceil(k * excess))]
        assert hidden[row].nonzero().flatten().tolist() == sorted(first)
        kept = sorted(first, key=lambda i, row=row: (float(scores[row, i]), int(order[row, i])))[:k]
        assert mask[row].nonzero().flatten().tolist() == sorted(kept)
