import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.modeling.curricula import NoCurriculum, ThreeStageCurriculum
from atat_zoo.modeling.curricula.networks import tilt
from atat_zoo.registry import Context
from atat_zoo.testing import check_curriculum
from tests.modeling.diffusion.noised import noised


def built(steps=1000, **parameters):
    return ThreeStageCurriculum(**{"warmup_steps": 0} | parameters).build(
        Context(vocabulary_size=4, length=4, steps=steps)
    )


def test_the_three_stages_have_the_weights_of_the_formula():
    importance, maskable = torch.tensor([[0.0, 0.5, 1.0]]), torch.ones(1, 3, dtype=torch.bool)
    schedule = built(sharpness=2.0)
    stages = {0.0: ("easy", -1), 0.19: ("easy", -1), 0.2: ("medium", 0), 0.79: ("medium", 0)}
    for progress, (stage, sign) in (stages | {0.8: ("hard", 1), 1.0: ("hard", 1)}).items():
        raw = (sign * 2.0 * importance).exp()
        assert schedule.stage(progress) == stage
        torch.testing.assert_close(schedule.weights(noised(maskable), importance, progress), raw / raw.mean())


def test_thresholds_weigh_what_is_easy_then_what_is_hard_and_all_else_alike():
    importance, maskable = torch.tensor([[0.1, 0.3, 0.5, 0.7, 0.9]]), torch.ones(1, 5, dtype=torch.bool)
    schedule = built(sharpness=2.0, thresholds=(0.3, 0.7))
    for progress, heavier in ((0.1, [1, 0, 0, 0, 0]), (0.5, [0] * 5), (0.9, [0, 0, 0, 0, 1])):
        raw = (2.0 * torch.tensor([heavier])).exp()
        torch.testing.assert_close(schedule.weights(noised(maskable), importance, progress), raw / raw.mean())
    check_curriculum(ThreeStageCurriculum(thresholds=(0.3, 0.7)), 10)


@pytest.mark.parametrize("thresholds", [(0.7, 0.3), (-0.1, 0.5), (0.5, 1.1)])
def test_thresholds_that_importance_cannot_have_are_refused(thresholds):
    with pytest.raises(ValueError, match="thresholds must be in"):
        ThreeStageCurriculum(thresholds=thresholds)


@pytest.mark.parametrize("how", ["linear", "exponential"])
def test_a_gradual_strength_is_continuous_and_never_falls(how):
    schedule = built(progress=how)
    strengths = [schedule.strength(i / 1000) for i in range(1001)]
    assert strengths[0] == -2.0
    assert strengths[200] == strengths[500] == strengths[799] == 0.0
    assert strengths[-1] == pytest.approx(2.0)
    steps = [b - a for a, b in itertools.pairwise(strengths)]
    assert min(steps) >= 0
    assert max(steps) < 0.06


def test_linear_and_exponential_differ_in_shape_only():
    linear, exponential = built(progress="linear"), built(progress="exponential")
    assert linear.strength(0.1) == pytest.approx(-1.0)
    assert -0.2 < exponential.strength(0.1) < 0
    assert linear.strength(0.9) == pytest.approx(1.0)
    assert 1.8 < exponential.strength(0.9) < 2


def test_warm_up_starts_from_equal_weights():
    schedule = built(steps=10_000, warmup_steps=1000)
    assert schedule.strength(0.0) == 0.0
    assert schedule.strength(0.05) == pytest.approx(-1.0)
    assert schedule.strength(0.1) == schedule.strength(0.15) == -2.0


@given(
    st.integers(1, 2_000_000),
    st.floats(0.01, 50),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple),
    st.sampled_from(["step", "linear", "exponential"]),
)
def test_the_easy_stage_has_its_full_strength_whatever_the_length_of_the_training(steps, sharpness, boundaries, how):
    schedule = built(steps, sharpness=sharpness, boundaries=boundaries, progress=how, warmup_steps=None)
    plain = built(steps, sharpness=sharpness, boundaries=boundaries, progress=how)
    assert schedule.strength(0.0) == 0
    for share in (0.1001, 0.3, 0.5, 0.99):
        assert schedule.strength(share * boundaries[0]) == plain.strength(share * boundaries[0]) < 0
    # A tenth of a falling strength is lost, and no more than it would have lost by then.
    assert schedule.strength(0.1001 * boundaries[0]) <= -sharpness * (0.6 if how == "exponential" else 0.89)


def test_in_a_short_training_warm_up_ends_with_the_easy_stage():
    schedule = built(steps=100, warmup_steps=1000)
    assert schedule.warmup == 0.2
    assert schedule.strength(0.9) == 2.0


@pytest.mark.parametrize("boundaries", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("how", ["step", "linear", "exponential"])
def test_stages_of_no_length_do_not_divide_by_zero(boundaries, how):
    schedule = built(boundaries=boundaries, progress=how, warmup_steps=10)
    for progress in (0.0, 0.5, 1.0):
        assert -2 <= schedule.strength(progress) <= 2


def test_boundaries_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="boundaries must not fall"):
        ThreeStageCurriculum(boundaries=(0.8, 0.2))


def test_a_tilt_survives_any_strength():
    weights = tilt(torch.tensor([[0.0, 1.0]]), 80.0, torch.ones(1, 2, dtype=torch.bool))
    assert bool((weights > 0).all())
    assert weights.sum().item() == pytest.approx(2.0)


def test_none_weighs_everything_alike():
    curriculum = NoCurriculum().build(Context(vocabulary_size=4, length=4))
    weights = curriculum.weights(noised(torch.ones(2, 3, dtype=torch.bool)), torch.rand(2, 3), 0.5)
    assert torch.equal(weights, torch.ones(2, 3))
    assert curriculum.stage(0.5) == "none"


def test_a_longer_training_is_another_one_from_its_first_step():
    assert not ThreeStageCurriculum().extends(0, 8, 16)


def test_a_token_that_is_never_masked_weighs_one():
    weights = tilt(torch.tensor([[0.0, 1.0, 0.5]]), 2.0, torch.tensor([[True, True, False]]))
    assert weights[0, 2] == 1
    assert weights[0, :2].mean().item() == pytest.approx(1)
