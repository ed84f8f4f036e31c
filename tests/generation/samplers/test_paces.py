"""Paces take what they say, by a schedule of their own or by what is uncertain."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table
from atat_zoo.generation.samplers.loop import run
from atat_zoo.generation.samplers.pace import (
    AdaptivePace,
    BinomialPace,
    CosinePace,
    ExtendedPace,
    FirstHittingPace,
    FixedPace,
    PlateauPace,
)
from atat_zoo.modeling.noise import CosineNoise, LinearNoise
from atat_zoo.modeling.uncertainty import EntropyUncertainty
from atat_zoo.testing.sampling import assemble, example_step
from atat_zoo.testing.toys import Hashed
from tests.examples import at_most


def step_at(number, *remaining, total=10):
    step = example_step(frozenset(), rows=len(remaining), length=20)
    step.number, step.rates, step.remaining = number, None, torch.tensor(remaining)
    step.total = torch.full_like(step.remaining, total)
    return step


def test_fixed_takes_its_share():
    pace = FixedPace(steps=4)
    for number, (remaining, left) in enumerate(itertools.pairwise([10, 8, 5, 3, 0])):
        assert remaining - pace.take(step_at(number, remaining)).item() == left
    # What a remask gave back is taken again.
    assert pace.take(step_at(1, 10)).tolist() == [5]
    assert pace.rates(1) == (0.75, 0.5)


def test_the_binomial_rates_are_those_of_the_noise():
    assert BinomialPace(steps=4, noise=LinearNoise()).rates(1) == pytest.approx((0.75, 0.5))
    before = 1 - float(CosineNoise().alpha(torch.tensor(0.25)))
    assert BinomialPace(steps=4, noise=CosineNoise()).rates(3) == pytest.approx((before, 0), abs=1e-6)


@pytest.mark.parametrize("remask_rate", [0.0, 0.25])
def test_the_binomial_pace_has_the_reverse_probability(remask_rate):
    n, rows = 4, 20_000
    step = step_at(4, n, total=n)
    step.host_seeds, step.remaining, step.remask_rate = torch.arange(rows), torch.full((rows,), n), remask_rate
    taken = BinomialPace(steps=10, noise=LinearNoise()).take(step)
    # t = 0.6, s = 0.5: (α_s − (1 − σ) α_t)/(1 − α_t).
    chance = (0.5 - (1 - remask_rate) * 0.4) / 0.6
    expected = binom.pmf(range(n + 1), n, chance) * rows
    assert chisquare(torch.bincount(taken, minlength=n + 1).numpy(), expected).pvalue > 0.001


def test_a_remask_rate_for_each_row():
    pace = BinomialPace(steps=10, noise=LinearNoise())
    step = step_at(4, 20, 20, total=20)
    step.host_seeds = torch.tensor([7, 7])
    step.remask_rate = torch.tensor([0.0, 1.25], dtype=torch.float64)
    first, second = pace.take(step).tolist()
    # σ = (1 − α_s)/α_t unmasks all.
    assert first < second == 20


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 40), st.floats(0, 1))
def test_adaptive_takes_between_n_over_max_and_n_over_min(low, more, n, uncertainty):
    pace = AdaptivePace(min_steps=low, max_steps=low + more, uncertainty=EntropyUncertainty())
    taken = pace.take(Fake(torch.ones(1, n, dtype=torch.bool), torch.tensor([n]), uncertainty)).item()
    wanted = n / (low + uncertainty * more)
    # ⌈wanted⌉, but for the rounding of a float32 uncertainty.
    assert wanted - 1e-4 <= taken < wanted + 1 + 1e-4
    assert taken >= 1
    assert pace.most(n) * taken >= n


class Fake:
    """A step whose uncertainty is given."""

    def __init__(self, open_, total, uncertainty):
        self.open, self.total, self.remaining, self.uncertainty = open_, total, total, uncertainty
        self.number, self.batch, self.rows, self.tokens = 0, len(open_), torch.arange(len(open_)), open_.long()
        self.memory = {}

    def measure(self, metric):
        return torch.where(self.open, self.uncertainty, 0.0).float()

    def mean_open(self, dense):
        return dense.sum(1) / self.open.sum(1)


def extended(low, most, added):
    return ExtendedPace(min_steps=low, max_steps=most, added=added, threshold=0.5, uncertainty=EntropyUncertainty())


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 12), st.integers(0, 5), st.data())
def test_extended_ends_in_as_many_steps_as_it_planned_and_never_in_more_than_its_maximum(n, low, more, added, data):
    pace = extended(low, low + more, added)
    step = Fake(torch.ones(1, n, dtype=torch.bool), torch.tensor([n]), 0.0)
    planned, left, number = low, n, 0
    while left:
        unsure = data.draw(st.booleans())
        step.number, step.uncertainty, step.remaining = number, 0.75 if unsure else 0.25, torch.tensor([left])
        step.open = torch.arange(n)[None] < left
        taken = pace.take(step).item()
        planned = min(planned + added * unsure, low + more)
        assert taken == math.ceil(left / (planned - number))
        left, number = left - taken, number + 1
    assert number <= min(n, planned) <= pace.most(n)


def test_the_plan_of_a_row_is_its_own():
    pace = extended(2, 8, 2)
    step = Fake(torch.ones(2, 8, dtype=torch.bool), torch.tensor([8, 8]), torch.tensor([[0.75], [0.25]]))
    assert pace.take(step).tolist() == [2, 4]
    step.rows, step.number = torch.tensor([1]), 1
    step.open, step.remaining, step.uncertainty = step.open[:1], torch.tensor([4]), 0.25
    assert pace.take(step).tolist() == [4]


def test_the_cosine_leaves_its_share():
    pace, left = CosinePace(steps=4), [10]
    for number in range(4):
        left.append(left[-1] - int(pace.take(step_at(number, left[-1]))))
    # ⌊10 cos(π/8)⌋, ⌊10 cos(π/4)⌋, ⌊10 cos(3π/8)⌋, 0.
    assert left == [10, 9, 7, 3, 0]
    # At least one, where the cosine is still flat.
    assert int(CosinePace(steps=50).take(step_at(0, 10))) == 1
    assert pace.rates(0)[0] == 1
    assert pace.rates(3)[1] == 0


class Told(Hashed):
    """Keeps the times that it was told."""

    def __init__(self, v):
        super().__init__(v)
        self.reads_time, self.times = True, []

    def __call__(self, tokens, t, where):
        self.times.append(t.clone())
        return super().__call__(tokens, t, where)


@at_most(15)
@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 12) | st.none())
def test_the_times_fall_and_are_never_zero(seed, n, steps):
    sampler, told = assemble(pace=FirstHittingPace(steps=steps)), Told(3)
    made = sampler.sample(told, torch.full((2, n), 3), torch.tensor([seed, seed + 1]))
    assert made.nfe.tolist() == [n if steps is None else min(n, steps)] * 2
    times = torch.stack(told.times)
    assert ((times > 0) & (times <= 1)).all()
    assert (times.diff(dim=0) <= 0).all()


def test_the_plateau():
    pace = PlateauPace(steps=20, height=0.9, begin=0.55, end=0.05)
    rates = [pace.rates(k)[0] for k in range(20)] + [pace.rates(19)[1]]
    assert [rates[i] for i in (0, 4, 9, 19, 20)] == pytest.approx([1, 1 - 0.9 * 0.2 / 0.45, 0.1, 0.1, 0])
    assert rates == sorted(rates, reverse=True)
    # Exactly still, since a remask goes by it.
    assert sum(pace.rates(k)[0] == pace.rates(k)[1] for k in range(20)) == 10
    assert math.isclose(pace.rates(5)[1], pace.rates(6)[0])


@pytest.mark.parametrize("noise", [LinearNoise(), CosineNoise()], ids=lambda noise: noise.name)
def test_a_model_is_told_the_time_at_which_as_much_is_masked(noise):
    """Sixteen of 64 tokens are masked, of which eight are to be filled: not the times of a text that is all masks."""
    told, position = Told(3), torch.arange(64).expand(400, 64)
    z = torch.where((position >= 10) & (position < 26), 3, 1)
    parts = assemble(pace=FirstHittingPace(noise=noise)).parts()
    run(parts, told, z, torch.arange(400), fill=(position >= 10) & (position < 18))
    first, *_, last = (float((1 - noise.alpha(t)).mean()) for t in told.times)
    # The first of eight is hit at 8/9 of its rate on average, the last at 1/9; the other eight masks stay.
    assert first == pytest.approx((8 + 8 * 8 / 9) / 64, abs=0.003)
    assert last == pytest.approx((8 + 8 / 9) / 64, abs=0.003)


def test_a_model_with_another_noise_is_refused():
    table = {"name": "x", "backbone": {"use": "dit", "time_conditioning": True}, "noise": "cosine"}
    with pytest.raises(UserError, match="the noise 'linear', and the model reads the times of 'cosine'"):
        from_table(table | {"sampler": "first_hitting"})
    from_table(table | {"sampler": {"use": "first_hitting", "noise": "cosine"}})
