"""The sampler `left_to_right`, and which others are causal."""

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.diffusion.positions import pairs
from atat_zoo.testing.sampling import traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed

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
