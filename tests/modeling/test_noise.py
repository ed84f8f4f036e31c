"""Golden numbers; weights against autograd and inverses are in the conformance suite."""

import math

import pytest
import torch

from atat_zoo.modeling.noise import (
    CosineNoise,
    CosineSquaredNoise,
    GeometricNoise,
    LinearNoise,
    LogLinearNoise,
    PolynomialNoise,
)
from atat_zoo.testing import check_noise

TWO_POINTS = torch.tensor([0.25, 0.5], dtype=torch.float64)


# A schedule, and its α and its weight at the two points.
CASES = [
    (LinearNoise(), (0.75, 0.5), (4.0, 2.0)),
    (
        CosineNoise(),
        (1 - math.sin(math.pi / 8), 1 - math.sqrt(0.5)),
        (math.pi / 2 * (1 + math.sqrt(2)), math.pi / 2),
    ),
    (CosineSquaredNoise(), (math.cos(math.pi / 8) ** 2, 0.5), (math.pi * (1 + math.sqrt(2)), math.pi)),
    (PolynomialNoise(exponent=3.0), (1 - 1 / 64, 7 / 8), (12.0, 6.0)),
    (
        GeometricNoise(sigma_min=0.01, sigma_max=100.0),
        (math.exp(-0.1), math.exp(-1.0)),
        (math.log(1e4) * 0.1 / math.expm1(0.1), math.log(1e4) / math.expm1(1.0)),
    ),
    (LogLinearNoise(eps=0.1), (0.775, 0.55), (4.0, 2.0)),
]


@pytest.mark.parametrize(("noise", "alpha", "weight"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_values_by_hand(noise, alpha, weight):
    torch.testing.assert_close(noise.alpha(TWO_POINTS), torch.tensor(alpha, dtype=torch.float64))
    torch.testing.assert_close(noise.weight(TWO_POINTS), torch.tensor(weight, dtype=torch.float64))


@pytest.mark.parametrize("noise", [noise for noise, *_ in CASES], ids=lambda noise: noise.name)
def test_a_time_is_that_of_its_rate_and_a_rate_that_is_never_reached_has_an_end(noise):
    times = torch.linspace(0, 1, 9, dtype=torch.float64)
    rates = 1 - noise.alpha(times)
    reached = rates < 1 - 1e-12  # beyond, a float64 does not tell times apart
    torch.testing.assert_close(noise.time_at(rates)[reached], times[reached])
    assert noise.time_at(torch.tensor([-3.0, -0.5, -1e-9, 1 + 1e-9, 1.5, 3.0])).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "noise",
    [
        PolynomialNoise(exponent=0.3),
        GeometricNoise(sigma_min=1e-9, sigma_max=100.0),
        GeometricNoise(sigma_min=0.9, sigma_max=1.0),
        LogLinearNoise(eps=0.0),
        LogLinearNoise(eps=0.5),
    ],
    ids=str,
)
def test_they_conform_with_other_parameters(noise):
    check_noise(noise, examples=20)


def test_noise_that_does_not_grow_is_refused():
    with pytest.raises(ValueError, match="sigma_min must be less than sigma_max"):
        GeometricNoise(sigma_min=2.0, sigma_max=1.0)
