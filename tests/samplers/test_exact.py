"""With an exact denoiser, one token at a time in an order fixed before the draw reproduces the joint."""

import pytest
import torch
from exactness import fit, masks

from atat_zoo.noise import CosineNoise
from atat_zoo.samplers.order import LeftToRightOrder, RandomOrder, UncertaintyOrder
from atat_zoo.samplers.pace import BinomialPace, FixedPace
from atat_zoo.samplers.published import AncestralSampler
from atat_zoo.testing.sampling import assemble
from atat_zoo.testing.toys import FunctionDenoiser, hashed_importance, toy
from atat_zoo.uncertainty import EntropyUncertainty

ROWS = 20_000
HARD = UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_uncertain", importance=True)
EASY = UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_certain")


@pytest.mark.parametrize(
    "order", [LeftToRightOrder(), RandomOrder(), HARD, EASY], ids=["left", "random", "hard", "easy"]
)
def test_one_at_a_time_reproduces_the_joint(order):
    joint = toy()
    sampler = assemble(order=order, pace=FixedPace(steps=3))
    weighed = FunctionDenoiser(joint.denoiser, 2, importance=hashed_importance)
    sample = sampler.sample(weighed, *masks(joint, ROWS))
    assert fit(sample, joint) > 0.001
    assert (sample.nfe == 3).all()
    assert sample.max_nfe == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [AncestralSampler(steps=500), assemble(pace=BinomialPace(steps=500, noise=CosineNoise()))],
    ids=["linear", "cosine"],
)
def test_ancestral_reproduces_the_joint(sampler):
    joint = toy()
    assert fit(sampler.sample(joint.denoiser, *masks(joint, ROWS)), joint) > 0.001


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
    sample = AncestralSampler(steps=2).sample(toy().denoiser, *masks(joint, ROWS))
    assert fit(sample, joint) > 0.001


def test_infilling_draws_from_the_conditional():
    joint = toy()
    tokens = torch.tensor([[2, 1, 2]]).expand(ROWS, 3)
    sample = assemble(pace=FixedPace(steps=3)).sample(joint.denoiser, tokens, torch.arange(ROWS))
    joint.p = torch.where(joint.states[:, 1] == 1, joint.p, 0)
    joint.p /= joint.p.sum()
    counts = torch.bincount(joint.index(sample.tokens), minlength=8)
    assert not counts[joint.p == 0].any()
    kept = joint.p > 0
    from scipy.stats import chisquare

    assert chisquare(counts[kept].double().numpy(), (joint.p[kept] * ROWS).numpy()).pvalue > 0.001
