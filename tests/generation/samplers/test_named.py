"""Named samplers at numbers of steps, those that fit an experiment, and what an observer is told."""

import pytest
import torch

from atat_zoo import UserError
from atat_zoo.evaluation.sampling import bench
from atat_zoo.experiment import from_table
from atat_zoo.generation.samplers import shifted
from atat_zoo.generation.samplers.published import (
    LeftToRightSampler,
    MaskGITSampler,
    P2Sampler,
    StridedSampler,
    at_steps,
    fitting,
)
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.testing.toys import Hashed

BACKBONE = {"use": "dit", "preset": "nano"}


def test_a_sampler_with_steps_has_a_row_for_each_number():
    rows = at_steps("ancestral", [4, 16])
    assert [(name, number, spec.steps) for name, number, spec in rows] == [("ancestral", 4, 4), ("ancestral", 16, 16)]
    assert at_steps("left_to_right", [4, 16]) == [("left_to_right", None, LeftToRightSampler())]
    # The fewest steps are no more than the most.
    rows = at_steps("uncertainty_guided", [2, 500])
    usual = at_steps("uncertainty_guided", [500])[0][2].min_steps
    assert [(spec.max_steps, spec.min_steps) for _, _, spec in rows] == [(2, 2), (500, usual)]
    assert 2 < usual < 500


def test_the_reference_is_first_and_what_does_not_fit_is_said_why():
    of_masks = from_table({"name": "x", "backbone": BACKBONE})
    fits, refused = fitting(of_masks, [4, 16])
    assert fits[0][:2] == ("ancestral", 16)
    assert sorted(row[1] for row in fits if row[0] == "ancestral") == [4, 16]
    assert "combination" not in {name for name, *_ in fits}
    assert "reverse weights" in refused["learned_order"]
    assert not {name for name, *_ in fits} & refused.keys()
    chosen, refused = fitting(of_masks, [4], at_steps("margin", [4]) + at_steps("learned_order", [4]))
    assert [name for name, *_ in chosen] == ["ancestral", "margin"]
    assert list(refused) == ["learned_order"]


def test_a_model_of_one_order_is_written_as_its_experiment_says():
    own = {"use": "strided", "stride": 4}
    data = {"length": 32}
    table = {"name": "x", "backbone": BACKBONE, "objective": own, "sampler": own, "data": data}
    fits, refused = fitting(from_table(table), [4, 16])
    assert fits == [("strided", None, StridedSampler(stride=4))]
    assert {"ancestral", "left_to_right"} <= refused.keys()
    with pytest.raises(UserError, match="runs/x: no sampler of those fits its model; name one that does"):
        bench(None, "runs/x", None, [])


@pytest.mark.parametrize("sampler", [MaskGITSampler(), P2Sampler()])
def test_what_no_policy_bound_covers_scores_no_text(sampler):
    z = torch.full((1, 3), 9)
    with pytest.raises(UserError, match=r"the policy bound does not cover this sampler: .*; choose another"):
        sampler.score_text(Hashed(9), z, torch.zeros(1, dtype=torch.int64), TeacherForcing(z))


def test_an_observer_is_told_of_the_whole_text():
    told = []
    observe = shifted(told.append, rows=10, positions=3, steps=5)
    observe({"step": 1, "rows": [0, 1], "positions": [0, 4], "tokens": [7, 8]})
    observe({"step": 2, "hidden": {"rows": [0], "positions": [1]}})
    assert told == [
        {"step": 6, "rows": [10, 11], "positions": [3, 7], "tokens": [7, 8]},
        {"step": 7, "hidden": {"rows": [10], "positions": [4]}},
    ]
