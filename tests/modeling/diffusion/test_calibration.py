import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from atat_zoo.modeling.diffusion.calibration import logit_shift, power_path, power_time, water_fill
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
