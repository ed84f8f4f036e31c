"""The sampler `left_to_right`, and which others are causal."""

import pytest
import torch
from exactness import fit, masks

from atat_zoo import Zoo
from atat_zoo.diffusion.positions import pairs
from atat_zoo.samplers.pace import OneAtATimePace
from atat_zoo.testing.sampling import traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, toy

LEFT = {"use": "left_to_right"}
ALONE = {"order": "left_to_right", "pace": "one_at_a_time"}


def sampler(table):
    return Zoo.load().spec("sampler", table)


def test_it_writes_from_left_to_right_and_asks_for_nothing_else():
    asked = []
    hashed = Hashed(5)

    def denoise(tokens, t, where):
        first = (tokens == 5).int().argmax(1)
        assert torch.equal(torch.stack(pairs(where)), torch.stack([torch.arange(len(tokens)), first]))
        asked.append(len(tokens))
        return hashed(tokens, t, where)

    z = torch.full((3, 6), 5)
    z[1, 2:5] = 1
    z[2] = 0
    made, trace = traced(sampler(LEFT), FunctionDenoiser(denoise, 5), z, torch.arange(3))
    assert made.nfe.tolist() == [6, 3, 0]
    assert made.max_nfe == 6
    assert asked == [2, 2, 2, 1, 1, 1]
    assert [record["positions"] for record in trace][:3] == [[0, 0], [1, 1], [2, 5]]


def test_it_reproduces_the_joint():
    joint = toy()
    sample = sampler(LEFT).sample(joint.denoiser, *masks(joint, 20_000))
    assert fit(sample, joint) > 0.001


@pytest.mark.parametrize(
    ("table", "causal"),
    [
        (LEFT, True),
        (LEFT | {"draw": {"use": "categorical", "temperature": 0.5}}, True),
        # Its temperature follows the confidence at all masks.
        (LEFT | {"draw": "confidence_tempered"}, False),
        ({"use": "combination", **ALONE}, True),
        ({"use": "combination", **ALONE, "order": "random"}, False),
        ({"use": "combination", **ALONE, "pace": "fixed"}, False),
        ({"use": "combination", **ALONE, "stop": "uncertainty"}, False),
        ({"use": "combination"}, False),
    ],
)
def test_which_samplers_are_causal(table, causal):
    assert sampler(table).causal is causal


@pytest.mark.parametrize("name", ["ancestral", "uncertainty_guided", "confidence_history"])
def test_others_do_not_say_so(name):
    assert not sampler(name).causal


def test_the_pace_takes_as_many_steps_as_positions():
    assert [OneAtATimePace().most(n) for n in (1, 7)] == [1, 7]
    assert OneAtATimePace().rates(0) is None
