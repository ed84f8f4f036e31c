"""The numbers of docs/explanation are those of its definitions on the toy distribution."""

import re

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.diffusion.likelihood_bounds import enumerate_masks, from_denoiser
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.testing.toys import toy
from tests.pages import ROOT


def row(page, name):
    """Return the number in the row of a name, in nats."""
    text = (ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\| `?{name}`? \| (\S+) \|$", text, re.MULTILINE)
    return float(found)


@pytest.mark.parametrize("name", ["uniform", "importance", "inverse"])
def test_masks_that_read_the_tokens_they_mask_are_above_the_entropy(name):
    """The optimal denoiser is p(x_i | z) ∝ Σ P(x) q(mask | x), where a token is its own importance."""
    joint = toy()
    every = joint.states.repeat(80, 1).double()
    rates = ((torch.arange(80) + 0.5) / 80).repeat_interleave(8)
    strategy = Zoo.load().spec("masking", name)
    p = strategy.probabilities(every, rates, torch.ones_like(every).bool()).double().view(80, 8, 3)

    def optimum(z, t, where):
        hidden = z == joint.mask_id
        q = torch.stack([torch.where(mask, p, 1 - p).prod(-1).mean(0) for mask in hidden])
        agrees = (hidden[:, None] | (z[:, None] == joint.states)).all(-1)
        ways = torch.einsum("bs,slv->blv", agrees * joint.p * q, torch.nn.functional.one_hot(joint.states).double())
        return (ways / ways.sum(-1, keepdim=True))[where].log()

    nats = float(joint.p @ enumerate_masks(from_denoiser(optimum), joint.states, mask_id=joint.mask_id))
    assert nats == pytest.approx(row("adaptive-masks.md", name), abs=1e-6)
    assert (nats < joint.entropy + 1e-6) == (name == "uniform")


@pytest.mark.parametrize("steps", [3, 2, 1])
def test_fewer_decoding_steps_lose_likelihood(steps):
    joint, forced = toy(), TeacherForcing(toy().states)
    sampler = Zoo.load().spec("sampler", {"use": "entropy", "steps": steps})
    masked = torch.full_like(joint.states, joint.mask_id)
    sampler.score_text(joint.denoiser, masked, torch.arange(8), forced)
    assert float(joint.p @ forced.nats.sum(1)) == pytest.approx(row("mathematics.md", steps), abs=1e-6)
