"""Golden numbers of the strategies; the general properties are held by the conformance suite."""

import math

import pytest
import torch

from atat_zoo.modeling.diffusion.contracts import StatefulPart
from atat_zoo.modeling.masking import ImportanceMasking, InverseMasking, LogitMasking, PositionMasking, PowerMasking
from atat_zoo.modeling.masking.position_bias import RunningBias, UShapeBias
from atat_zoo.registry import Context
from atat_zoo.testing import check_masking
from tests.modeling.diffusion.noised import noised

ALL = torch.ones(1, 3, dtype=torch.bool)
CONTEXT = Context(vocabulary_size=5, length=16)


def row(*values):
    return torch.tensor([values])


def test_without_saturation_it_is_softmax_times_the_expected_count():
    importance, rate = row(0.1, 0.5, 0.9, 0.3), torch.tensor([0.25])
    p = ImportanceMasking(temperature=0.7).probabilities(importance, rate, torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(p, torch.softmax(importance / 0.7, -1) * 1.0)


def test_inverse_is_importance_of_the_complement():
    importance, rate = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.4, 0.7, 1.0])
    maskable = torch.ones(4, 9, dtype=torch.bool)
    inverse = InverseMasking(temperature=0.2).probabilities(importance, rate, maskable)
    torch.testing.assert_close(
        inverse, ImportanceMasking(temperature=0.2).probabilities(1 - importance, rate, maskable), atol=1e-6, rtol=0
    )


def test_power_with_weights_one_and_a_half():
    # w = 1 and 1/2, so τ + √τ = 2r: at r = 3/8 the root is τ = 1/4.
    p = PowerMasking(temperature=1 / math.log(2)).probabilities(row(0.0, 1.0), torch.tensor([0.375]), ALL[:, :2])
    torch.testing.assert_close(p, row(0.25, 0.5))


def test_logit_keeps_odds_ratios():
    p = LogitMasking(temperature=0.5).probabilities(row(0.0, 0.5, 1.0), torch.tensor([0.3]), ALL)
    odds = (p / (1 - p)).log()
    torch.testing.assert_close(odds - odds[:, :1], row(0.0, 1.0, 2.0), atol=1e-5, rtol=0)


def test_position_is_importance_of_the_sum():
    bias = row(1.0, 0.25, 0.0, 0.25, 1.0)
    importance, rate, maskable = torch.rand(1, 5), torch.tensor([0.4]), torch.ones(1, 5, dtype=torch.bool)
    position = PositionMasking(temperature=0.3, strength=2.0, bias=UShapeBias(exponent=2.0)).build(CONTEXT)
    summed = ImportanceMasking(temperature=0.3).probabilities(importance + 2 * bias, rate, maskable)
    torch.testing.assert_close(position.probabilities(importance, rate, maskable), summed)


def test_position_is_adaptive_if_and_only_if_its_bias_is():
    assert not isinstance(PositionMasking(bias=UShapeBias()).build(CONTEXT), StatefulPart)
    learned = PositionMasking(bias=RunningBias()).build(CONTEXT)
    assert isinstance(learned, StatefulPart)
    masked, half = torch.ones(1, 16, dtype=torch.bool), torch.full((1, 16), 0.5)
    torch.testing.assert_close(learned.probabilities(0 * half, half[0, :1], masked), half)
    learned.update(learned.statistics(noised(masked), torch.arange(16.0)[None]), 0.0)
    p = learned.probabilities(0 * half, half[0, :1], masked)
    assert (p.diff() > 0).all(), "positions with more loss are masked more"
    assert "bias.sums" in learned.state_dict()


@pytest.mark.parametrize("strength", [-3.0, 40.0])
def test_position_conforms_with_a_bias_that_learns(strength):
    check_masking(PositionMasking(bias=RunningBias(), strength=strength), examples=5)
