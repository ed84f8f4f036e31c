"""Golden numbers of strategies, drawings and biases; the general properties are held by the conformance suite."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.calibration import comb
from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.modeling.masking import (
    ImportanceMasking,
    InverseMasking,
    LogitMasking,
    Masking,
    PositionMasking,
    PowerMasking,
)
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing, SystematicMaskDrawing
from atat_zoo.modeling.masking.position_bias import FlatBias, GradientBias, LeftToRightBias, RunningBias, UShapeBias
from atat_zoo.registry import Context
from atat_zoo.testing import check_masking
from tests.diffusion.noised import noised

ALL = torch.ones(1, 3, dtype=torch.bool)
CONTEXT = Context(vocabulary_size=5, length=16)


def row(*values):
    return torch.tensor([values])


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


def test_a_strategy_goes_by_importance_unless_it_ignores_it_or_goes_by_positions_too():
    for direction, positional, reads in ((1, False, True), (-1, False, True), (0, False, False), (1, True, False)):
        says = SimpleNamespace(direction=direction, positional=positional)
        assert Masking.reads_importance.fget(says) is reads


def test_position_is_importance_of_the_sum():
    bias = row(1.0, 0.25, 0.0, 0.25, 1.0)
    importance, rate, maskable = torch.rand(1, 5), torch.tensor([0.4]), torch.ones(1, 5, dtype=torch.bool)
    position = PositionMasking(temperature=0.3, strength=2.0, bias=UShapeBias(exponent=2.0)).build(CONTEXT)
    summed = ImportanceMasking(temperature=0.3).probabilities(importance + 2 * bias, rate, maskable)
    torch.testing.assert_close(position.probabilities(importance, rate, maskable), summed)


def test_position_is_adaptive_if_and_only_if_its_bias_is():
    assert not isinstance(PositionMasking(bias=UShapeBias()).build(CONTEXT), StatefulComponent)
    learned = PositionMasking(bias=RunningBias()).build(CONTEXT)
    assert isinstance(learned, StatefulComponent)
    masked, half = torch.ones(1, 16, dtype=torch.bool), torch.full((1, 16), 0.5)
    torch.testing.assert_close(learned.probabilities(0 * half, half[0, :1], masked), half)
    learned.update(learned.statistics(noised(masked), torch.arange(16.0)[None]), 0.0)
    p = learned.probabilities(0 * half, half[0, :1], masked)
    assert (p.diff() > 0).all(), "positions with more loss are masked more"
    assert "bias.sums" in learned.state_dict()


@pytest.mark.parametrize("strength", [-3.0, 40.0])
def test_position_conforms_with_a_bias_that_learns(strength):
    check_masking(PositionMasking(bias=RunningBias(), strength=strength), examples=5)


def keys_of(rows, seed=0):
    return sequence_keys(seed, "mask", torch.arange(rows))


@given(st.integers(0, 2**31), st.integers(1, 64))
def test_bernoulli_is_nested_in_p(seed, length):
    p = torch.rand(3, length, generator=torch.Generator().manual_seed(seed))
    key = keys_of(3, seed)
    low, high = BernoulliMaskDrawing()(p / 2, key), BernoulliMaskDrawing()(p, key)
    assert not bool((low & ~high).any())


@given(st.lists(st.integers(0, 64), min_size=1, max_size=12))
def test_a_comb_has_exactly_the_marginals_p(sixty_fourths):
    p = torch.tensor([sixty_fourths], dtype=torch.float32) / 64
    # p is in 64ths, so which pieces are hit is constant between the points of this grid: the sum is the integral.
    starts = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    hit = comb(p.expand(64, -1), starts)
    assert torch.equal(hit.double().mean(0), p[0].double())
    total = p.double().sum()
    counts = hit.sum(-1)
    assert bool((counts >= total.floor()).all())
    assert bool((counts <= total.ceil()).all())


def test_systematic_excludes_no_pair():
    """In a fixed order neighbours would exclude each other."""
    p = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0, 0.37])
    mask = SystematicMaskDrawing()(p.expand(40_000, 6), keys_of(40_000))
    assert (mask[:, 1] & mask[:, 5]).any()


FOUR = Context(vocabulary_size=5, length=4)


def test_fixed_biases_by_hand():
    torch.testing.assert_close(UShapeBias().build(FOUR).values(5), torch.tensor([1.0, 0.25, 0.0, 0.25, 1.0]))
    assert UShapeBias(exponent=3.0).build(FOUR).values(1).tolist() == [1.0]
    for length in (2, 3, 100, 1023):
        values = UShapeBias(exponent=1.7).build(FOUR).values(length)
        assert torch.equal(values, values.flip(0))
    torch.testing.assert_close(LeftToRightBias().build(FOUR).values(5), torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert LeftToRightBias().build(FOUR).values(1).tolist() == [0.0]
    assert FlatBias().build(FOUR).values(3).tolist() == [0.0, 0.0, 0.0]


def test_running_brings_the_means_to_the_unit_interval():
    bias = RunningBias().build(FOUR)
    assert bias.values(4).tolist() == [0, 0, 0, 0]
    batch = noised([[True, True, True, False], [True, False, True, False]])
    loss = torch.tensor([[1.0, 4.0, 3.0, 0.0], [3.0, 0.0, 3.0, 0.0]]) / 100
    bias.update(bias.statistics(batch, loss), 0.0)
    # Means 2, 4, 3 in hundredths; the position never masked takes the mean over all draws, 14/5.
    torch.testing.assert_close(bias.values(4), torch.tensor([0.0, 1.0, 0.5, 0.4]))
    with pytest.raises(ValueError, match="4 positions, fewer than 5"):
        bias.values(5)
    bias = RunningBias().build(FOUR)  # a shorter text
    bias.update(bias.statistics(noised([[True, True]]), torch.tensor([[1.0, 2.0]])), 0.0)
    assert bias.values(2).tolist() == [0.0, 1.0]


def test_running_does_not_blow_up_noise_between_equals():
    bias = RunningBias(floor=0.1).build(FOUR)
    bias.update(bias.statistics(noised([[True] * 4]), torch.tensor([[2.0, 2.002, 2.0, 2.0]])), 0.0)
    assert bias.values(4).max() < 0.02


def test_running_forgets_and_keeps_what_is_seldom_seen():
    bias = RunningBias(decay=0.5).build(FOUR)
    bias.update(bias.statistics(noised([[True] * 4]), torch.tensor([[8.0, 0.0, 4.0, 4.0]])), 0.0)
    assert bias.values(4)[0] == 1
    for _ in range(30):
        bias.update(bias.statistics(noised([[True, True, False, False]]), torch.tensor([[0.0, 8.0, 0.0, 0.0]])), 0.0)
    torch.testing.assert_close(bias.values(4), torch.tensor([0.0, 1.0, 0.5, 0.5]))


def test_a_step_of_gradient_is_that_of_autograd():
    """Of Σ p_i ℓ_i over softmax weights of σ(θ), where all p are alike."""
    losses = torch.tensor([8.0, 1.0, 4.0, 3.0], dtype=torch.float64)
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    (theta.sigmoid().softmax(0) @ losses).backward()
    bias = GradientBias(learning_rate=1.0).build(FOUR)
    assert bias.values(4).tolist() == [0.5] * 4
    bias.update(bias.statistics(noised([[True] * 4]), losses.float()[None]), 0.0)
    torch.testing.assert_close(bias.theta, theta.grad * 4 / losses.mean())


def test_gradient_rises_where_it_is_hard_and_stays_where_nothing_is_masked():
    bias = GradientBias().build(FOUR)
    for _ in range(500):
        bias.update(bias.statistics(noised([[True, True, True, False]]), torch.tensor([[3.0, 2.0, 1.0, 0.0]])), 0.0)
    hard, middle, easy, unseen = bias.values(4).tolist()
    assert hard > 0.9
    assert easy < 0.1
    assert middle == unseen == 0.5
    bias.update(torch.zeros(2, 4, dtype=torch.float64), 0.0)
    assert bias.values(4).tolist() == [hard, middle, easy, unseen]
    with pytest.raises(ValueError, match="4 positions, fewer than 5"):
        bias.values(5)
