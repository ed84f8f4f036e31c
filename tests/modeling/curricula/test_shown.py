"""Weights that depend on what is shown."""

import math

import attrs
import pytest
import torch

from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table
from atat_zoo.modeling.curricula import ContextAdaptiveCurriculum, PlannerAwareCurriculum
from atat_zoo.testing.toys import toy
from tests import learned
from tests.modeling.diffusion.noised import noised


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
    with pytest.raises(UserError, match="curriculum: 'planner_aware' weighs tokens by how hard they are when hidden"):
        from_table({"name": "a", "curriculum": "planner_aware"}, where="here")
    table = {"curriculum": "planner_aware", "estimator": {"use": "transformer", "reads": "z"}, "name": "a"}
    assert from_table(table, where="here").parts["curriculum"].share == 0.5
