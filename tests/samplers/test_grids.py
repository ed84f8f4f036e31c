"""Paces with a schedule of their own take their share."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table
from atat_zoo.noise import CosineNoise, LinearNoise
from atat_zoo.samplers.loop import run
from atat_zoo.samplers.pace import CosinePace, FirstHittingPace, PlateauPace
from atat_zoo.testing.sampling import assemble, example_step
from atat_zoo.testing.toys import FunctionDenoiser, Hashed


def step_at(number, total, remaining):
    step = example_step(frozenset(), rows=1, length=20)
    step.number, step.rates = number, None
    step.total, step.remaining = torch.tensor([total]), torch.tensor([remaining])
    return step


def test_the_cosine_leaves_its_share():
    pace, left = CosinePace(steps=4), [10]
    for number in range(4):
        left.append(left[-1] - int(pace.take(step_at(number, 10, left[-1]))))
    # ⌊10 cos(π/8)⌋, ⌊10 cos(π/4)⌋, ⌊10 cos(3π/8)⌋, 0.
    assert left == [10, 9, 7, 3, 0]
    # At least one, where the cosine is still flat.
    assert int(CosinePace(steps=50).take(step_at(0, 10, 10))) == 1
    assert pace.rates(0)[0] == 1
    assert pace.rates(3)[1] == 0


@given(st.integers(1, 40), st.integers(1, 40))
def test_first_hitting_in_steps_takes_evenly_many(n, steps):
    sampler = assemble(pace=FirstHittingPace(steps=steps, noise=LinearNoise()))
    made = sampler.sample(Hashed(3), torch.full((1, n), 3), torch.arange(1))
    assert made.nfe.item() == min(n, steps)


@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 12) | st.none())
def test_the_times_fall_and_are_never_zero(seed, n, steps):
    seen = []

    def denoiser(tokens, t, where):
        seen.append(t.clone())
        return Hashed(3)(tokens, t, where)

    sampler = assemble(pace=FirstHittingPace(steps=steps, noise=LinearNoise()))
    told = FunctionDenoiser(denoiser, 3, reads_time=True)
    sampler.sample(told, torch.full((2, n), 3), torch.tensor([seed, seed + 1]))
    times = torch.stack(seen)
    assert (times > 0).all()
    assert (times <= 1).all()
    assert (times.diff(dim=0) <= 0).all()


def test_the_plateau():
    pace = PlateauPace(steps=20, height=0.9, begin=0.55, end=0.05)
    rates = [pace.rates(k)[0] for k in range(20)] + [pace.rates(19)[1]]
    assert rates[0] == 1
    assert rates[9] == rates[18] == pytest.approx(0.1)
    assert rates[19] == pytest.approx(0.1)
    assert rates[20] == 0
    assert rates[4] == pytest.approx(1 - 0.9 * 0.2 / 0.45)
    assert rates == sorted(rates, reverse=True)
    # Exactly still, since a remask goes by it.
    assert sum(pace.rates(k)[0] == pace.rates(k)[1] for k in range(20)) == 10
    assert math.isclose(pace.rates(5)[1], pace.rates(6)[0])


@pytest.mark.parametrize("noise", [LinearNoise(), CosineNoise()], ids=lambda noise: noise.name)
def test_a_model_is_told_the_time_at_which_as_much_is_masked(noise):
    """Sixteen of 64 tokens are masked, of which eight are to be filled: not the times of a text that is all masks."""
    seen = []

    def denoiser(tokens, t, where):
        seen.append(1 - noise.alpha(t))
        return Hashed(3)(tokens, t, where)

    rows = 400
    z = torch.ones(rows, 64, dtype=torch.int64)
    z[:, 10:26] = 3
    fill = torch.zeros(rows, 64, dtype=torch.bool)
    fill[:, 10:18] = True
    parts = assemble(pace=FirstHittingPace(noise=noise)).parts()
    run(parts, FunctionDenoiser(denoiser, 3, reads_time=True), z, torch.arange(rows), fill=fill)
    # The first of eight is hit at 8/9 of its rate on average, the last at 1/9; the other eight masks stay.
    assert float(seen[0].mean()) == pytest.approx((8 + 8 * 8 / 9) / 64, abs=0.003)
    assert float(seen[-1].mean()) == pytest.approx((8 + 8 / 9) / 64, abs=0.003)


def test_a_model_with_another_noise_is_refused():
    table = {"name": "x", "backbone": {"use": "dit", "time_conditioning": True}, "noise": "cosine"}
    with pytest.raises(UserError, match="the noise 'linear', and the model reads the times of 'cosine'"):
        from_table(table | {"sampler": "first_hitting"})
    from_table(table | {"sampler": {"use": "first_hitting", "noise": "cosine"}})
