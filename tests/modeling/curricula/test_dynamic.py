import itertools

import pytest
import torch

from atat_zoo.modeling.curricula import DynamicCurriculum
from atat_zoo.modeling.diffusion.contracts import StatefulPart
from atat_zoo.registry import Context
from tests.modeling.diffusion.noised import noised

CONTEXT = Context(vocabulary_size=4, length=2)
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
    ],
    ids=["falls", "rises", "noise"],
)
def test_the_stages_follow_the_trend_of_the_loss(losses, stages):
    assert fed(DynamicCurriculum(**QUICK).build(CONTEXT), losses) == stages


def test_it_advances_when_the_loss_is_flat_and_stays_in_the_last_stage():
    curriculum = DynamicCurriculum(**QUICK).build(CONTEXT)
    assert fed(curriculum, [3.0] * 19) == ["easy"]
    assert fed(curriculum, [3.0] * 200) == ["medium", "hard"]
    assert int(curriculum.position) == 2
    assert curriculum.strength(0.0) == curriculum.sharpness


def test_it_steps_back_when_the_loss_rises():
    curriculum = DynamicCurriculum(**QUICK).build(CONTEXT)
    fed(curriculum, [3.0] * 25)
    assert curriculum.stage(0.0) == "medium"
    assert fed(curriculum, [3.0 * 1.05**i for i in range(12)]) == ["medium", "easy"]


@pytest.mark.parametrize("bad", [[0.0, 0.0], [float("nan"), 8.0], [float("inf"), 8.0]])
def test_a_step_that_says_nothing_changes_nothing(bad):
    curriculum = DynamicCurriculum(**QUICK).build(CONTEXT)
    fed(curriculum, [3.0, 2.0, 2.5])
    before = {name: value.clone() for name, value in curriculum.state_dict().items()}
    curriculum.update(torch.tensor(bad, dtype=torch.float64), 0.0)
    for name, value in curriculum.state_dict().items():
        assert torch.equal(value, before[name])


def test_weights_are_those_of_the_stage():
    curriculum = DynamicCurriculum(sharpness=1.5, **QUICK).build(CONTEXT)
    assert isinstance(curriculum, StatefulPart)
    step = noised([[True, True]])
    importance = torch.tensor([[0.0, 1.0]])
    for position, sign in enumerate((-1, 0, 1)):
        curriculum.position.fill_(position)
        raw = (sign * 1.5 * importance).exp()
        torch.testing.assert_close(curriculum.weights(step, importance, 0.0), raw / raw.mean())


def test_statistics_are_the_sum_and_count_of_what_was_masked():
    step = noised([[True, False], [True, True]])
    total = DynamicCurriculum().build(CONTEXT).statistics(step, torch.tensor([[1.0, 0.0], [2.0, 4.0]]))
    assert total.tolist() == [7.0, 3.0]


def test_a_fast_mean_that_is_not_faster_is_refused():
    with pytest.raises(ValueError, match="fast must be less than slow"):
        DynamicCurriculum(fast=50.0, slow=50.0)
