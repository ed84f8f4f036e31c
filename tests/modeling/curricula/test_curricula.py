"""Loss weights by their formulas: by the stage of the training, by the trend of the loss, and by what is shown."""

import itertools
import math

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.calibration import tilt
from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.experiment import from_table
from atat_zoo.modeling.curricula import (
    ContextAdaptiveCurriculum,
    DynamicCurriculum,
    PlannerAwareCurriculum,
    ThreeStageCurriculum,
)
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.testing import check_curriculum
from atat_zoo.testing.toys import toy
from tests import learned
from tests.diffusion.noised import noised


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
    for boundaries, how in itertools.product([(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)], ["step", "linear"]):
        schedule = built(boundaries=boundaries, progress=how, warmup_steps=10)
        assert all(-2 <= schedule.strength(progress) <= 2 for progress in (0.0, 0.5, 1.0))
    assert not ThreeStageCurriculum().extends(0, 8, 16), "a longer training is another one from its first step"


@pytest.mark.parametrize(
    ("curriculum", "parameters", "said"),
    [
        *(
            (ThreeStageCurriculum, {"thresholds": ends}, "thresholds must")
            for ends in ((0.7, 0.3), (-0.1, 0.5), (0.5, 1.1))
        ),
        (ThreeStageCurriculum, {"boundaries": (0.8, 0.2)}, "boundaries must be in ascending order, not"),
        (DynamicCurriculum, {"fast": 50.0, "slow": 50.0}, "fast must be less than slow"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(curriculum, parameters, said):
    with pytest.raises(ValueError, match=said):
        curriculum(**parameters)


def test_a_tilt_survives_any_strength():
    weights = tilt(torch.tensor([[0.0, 1.0]]), 80.0, torch.ones(1, 2, dtype=torch.bool))
    assert bool((weights > 0).all())
    assert weights.sum().item() == pytest.approx(2.0)


DYNAMIC = Context(vocabulary_size=4, length=2)
QUICK = {"patience": 20, "fast": 5.0, "slow": 25.0}


def fed(curriculum, losses):
    """Let the curriculum see mean losses, one a step; return the stages it passed through."""
    stages = []
    for loss in losses:
        curriculum.update(torch.tensor([loss * 8, 8.0], dtype=torch.float64), 0.0)
        stages.append(curriculum.stage(0.0))
    return [stage for stage, _ in itertools.groupby(stages)]


NOISE = torch.randn(400, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("losses", "stages"),
    [
        ([8 * 0.99**i for i in range(300)], ["easy"]),  # it falls
        ([3.0 * 1.05**i for i in range(60)], ["easy"]),  # it rises, and there is no stage to go back to
        ((3 + 0.03 * NOISE).tolist(), ["easy", "medium", "hard"]),  # small noise is flat
        ([3.0] * 19, ["easy"]),
        ([3.0] * 219, ["easy", "medium", "hard"]),  # and there is no stage after that
        ([3.0] * 25 + [3.0 * 1.05**i for i in range(12)], ["easy", "medium", "easy"]),  # it rises
    ],
    ids=["falls", "rises", "noise", "patient", "flat", "back"],
)
def test_the_stages_follow_the_trend_of_the_loss(losses, stages):
    assert fed(DynamicCurriculum(**QUICK).build(DYNAMIC), losses) == stages


@pytest.mark.parametrize("bad", [[0.0, 0.0], [float("nan"), 8.0], [float("inf"), 8.0]])
def test_a_step_that_says_nothing_changes_nothing(bad):
    curriculum = DynamicCurriculum(**QUICK).build(DYNAMIC)
    fed(curriculum, [3.0, 2.0, 2.5])
    before = {name: value.clone() for name, value in curriculum.state_dict().items()}
    curriculum.update(torch.tensor(bad, dtype=torch.float64), 0.0)
    for name, value in curriculum.state_dict().items():
        assert torch.equal(value, before[name])


def test_weights_are_those_of_the_stage():
    curriculum = DynamicCurriculum(sharpness=1.5, **QUICK).build(DYNAMIC)
    assert isinstance(curriculum, StatefulComponent)
    step = noised([[True, True]])
    importance = torch.tensor([[0.0, 1.0]])
    for position, sign in enumerate((-1, 0, 1)):
        curriculum.position.fill_(position)
        raw = (sign * 1.5 * importance).exp()
        torch.testing.assert_close(curriculum.weights(step, importance, 0.0), raw / raw.mean())


def test_statistics_are_the_sum_and_count_of_what_was_masked():
    step = noised([[True, False], [True, True]])
    total = DynamicCurriculum().build(DYNAMIC).statistics(step, torch.tensor([[1.0, 0.0], [2.0, 4.0]]))
    assert total.tolist() == [7.0, 3.0]


def step(hidden, maskable=None):
    return noised([[c == "_" for c in row] for row in hidden], maskable=maskable)


def weights(curriculum, given, importance=None):
    importance = torch.rand(given.x.shape) if importance is None else importance
    return curriculum.weights(given, importance, 0.5)


def test_context_weights_by_their_formula():
    p, floor = 0.4, 0.25
    given = step(["a__b_", "_____", "abcde"])
    found = weights(ContextAdaptiveCurriculum(sharpness=p, floor=floor), given)
    for row, visible in enumerate([{0, 3}, set(), set(range(5))]):
        raw = [
            floor + (1 - floor) * sum(0.5 * p * (1 - p) ** (abs(i - j) - 1) for j in visible - {i}) for i in range(5)
        ]
        assert found[row].tolist() == pytest.approx([5 * w / sum(raw) for w in raw], rel=1e-6)
    assert torch.equal(found[1], torch.ones(5))


def test_padding_is_no_context():
    maskable = torch.tensor([[True, True, True, False]])
    curriculum = ContextAdaptiveCurriculum()
    padded, alone = weights(curriculum, step(["a__x"], maskable)), weights(curriculum, step(["a__"]))
    torch.testing.assert_close(padded[:, :3], alone)
    assert padded[0, 3] == 1


def test_planner_weights_by_their_formula():
    importance = torch.tensor([[0.1, 0.9, 0.4, 0.5]])
    given = step(["_a__"])
    found = weights(PlannerAwareCurriculum(share=0.6, temperature=0.5), given, importance)[0]
    w = [math.exp(-v / 0.5) for v in (0.1, 0.4, 0.5)]
    expected = [0.4 + 0.6 * 3 * v / sum(w) for v in w]
    assert found.tolist() == pytest.approx([expected[0], 1.0, expected[1], expected[2]], rel=1e-6)
    hard = weights(PlannerAwareCurriculum(share=0.6, temperature=0.5, first="hard"), given, importance)[0]
    assert hard[3] > hard[2] > hard[0]


@pytest.mark.parametrize("curriculum", [ContextAdaptiveCurriculum(), PlannerAwareCurriculum()], ids=str)
def test_they_tilt_nothing_that_is_learned(curriculum):
    """With weights of z and uniform masks the learned conditionals are those of the text."""
    joint = toy()
    h = []
    for mask in learned.masks(3):
        masked = mask.expand(8, 3)
        z = torch.where(masked, 2, joint.states)
        given = attrs.evolve(noised(masked), x=joint.states, z=z)
        importance = ((z * torch.tensor([9, 3, 1])).sum(1, keepdim=True) * torch.tensor([1, 2, 3]) % 7) / 7
        h.append(curriculum.weights(given, importance, 0.5).double())
    p, known = learned.conditionals(joint, torch.stack(h))
    torch.testing.assert_close(p[known], learned.posteriors(joint)[known], atol=1e-12, rtol=0)
    assert torch.stack(h).std() > 0.01


def test_a_planner_that_reads_the_clean_text_is_refused():
    with pytest.raises(UserError, match="curriculum: 'planner_aware' needs the importance of masked tokens"):
        from_table({"name": "a", "curriculum": "planner_aware"}, where="here")
    table = {"curriculum": "planner_aware", "estimator": {"use": "transformer", "reads": "z"}, "name": "a"}
    assert from_table(table, where="here").parts["curriculum"].share == 0.5


def test_a_token_that_is_never_masked_weighs_one():
    weights = tilt(torch.tensor([[0.0, 1.0, 0.5]]), 2.0, torch.tensor([[True, True, False]]))
    assert weights[0, 2] == 1
    assert weights[0, :2].mean().item() == pytest.approx(1)
