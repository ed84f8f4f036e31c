"""With an exact denoiser, one token at a time in an order fixed before the draw reproduces the joint."""

import pytest
import torch
from scipy.stats import chisquare

from atat_zoo.samplers.ancestral import Ancestral
from atat_zoo.testing.toys import ENTROPY, toy


def fit(sample, joint):
    counts = torch.bincount(joint.index(sample.tokens), minlength=len(joint.p)).double()
    return chisquare(counts.numpy(), (joint.p * counts.sum()).numpy()).pvalue


def masks(joint, rows):
    return torch.full((rows, joint.length), joint.mask_id), torch.arange(rows)


def test_the_toy_has_the_entropy_that_is_published_for_it():
    assert toy().entropy == pytest.approx(ENTROPY, abs=5e-7)


def test_ancestral_reproduces_the_joint():
    joint = toy()
    sample = Ancestral(steps=500).sample(joint.denoiser, *masks(joint, 20_000), mask_id=joint.mask_id)
    assert fit(sample, joint) > 0.001


def test_ancestral_in_one_step_does_not():
    joint = toy()
    sample = Ancestral(steps=1).sample(joint.denoiser, *masks(joint, 20_000), mask_id=joint.mask_id)
    assert fit(sample, joint) < 1e-6
