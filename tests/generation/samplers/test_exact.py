"""With an exact denoiser, one token at a time in an order fixed before the draw reproduces the joint.

And ancestral sampling has the distribution of the published loop, written plainly.
"""

import pytest
import torch
from exactness import fit, masks

from atat_zoo.generation.samplers import Sample
from atat_zoo.generation.samplers.published import AncestralSampler
from atat_zoo.registry import Zoo
from atat_zoo.testing.toys import FunctionDenoiser, hashed_importance, toy

plain_loop = pytest.importorskip("benchmarks.plain_loop", reason="the benchmarks are not in a source distribution")
ROWS = 20_000
HARD = {"use": "uncertainty", "first": "most_uncertain", "importance": True}
ONE_AT_A_TIME = [
    {"use": "combination", "order": HARD, "pace": {"use": "fixed", "steps": 3}},
    {"use": "margin"},
    {"use": "first_hitting"},
    {"use": "left_to_right"},
    {"use": "entropy_bounded", "gamma": 0.0},
]


@pytest.mark.parametrize("table", ONE_AT_A_TIME, ids=lambda table: table["use"])
def test_one_at_a_time_reproduces_the_joint(table):
    joint = toy()
    weighed = FunctionDenoiser(joint.denoiser, 2, importance=hashed_importance)
    sample = Zoo.load().spec("sampler", table).sample(weighed, *masks(joint, ROWS))
    assert fit(sample, joint) > 0.001
    assert (sample.nfe == 3).all()
    assert sample.max_nfe == 3


def test_few_steps_have_the_distribution_of_ancestral_sampling_in_closed_form():
    """T = 2 on the toy, by summing over which tokens are unmasked in the first step, each with ½."""
    joint = toy()
    first = joint.marginals(torch.full((1, 3), 2))[0]
    expected = torch.zeros_like(joint.p)
    for index, x in enumerate(joint.states):
        for code in range(8):
            early = torch.tensor([bool(code >> i & 1) for i in range(3)])
            z = torch.where(early, x, 2)
            late = joint.marginals(z[None])[0]
            probability = torch.where(early, first[[0, 1, 2], x], late[[0, 1, 2], x]).prod()
            expected[index] += probability / 8
    joint.p = expected
    z, seeds = masks(joint, ROWS)
    assert fit(AncestralSampler(steps=2).sample(toy().denoiser, z, seeds), joint) > 0.001
    # A visible position's logits are never drawn from; marginals are its one-hot, whose log is −∞ elsewhere.
    plain = plain_loop.sample(
        lambda z: toy().marginals(z).clamp(min=1e-300).log(), z, 2, 2, torch.Generator().manual_seed(1)
    )
    assert fit(Sample(tokens=plain, nfe=seeds, max_nfe=2), joint) > 0.001
