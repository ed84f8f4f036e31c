"""The published loop that `benchmarks.sampling_overhead` times is the same sampler as ours, written plainly."""

import pytest
import torch
from exactness import fit, masks

from atat_zoo.samplers import Sample
from atat_zoo.samplers.published import AncestralSampler
from atat_zoo.testing.toys import toy

plain_loop = pytest.importorskip("benchmarks.plain_loop", reason="the benchmarks are not in a source distribution")
ROWS = 20_000


def plain(joint, steps):
    z, _ = masks(joint, ROWS)
    # A visible position's logits are never drawn from; marginals are its one-hot, whose log is −∞ elsewhere.
    tokens = plain_loop.sample(
        lambda z: joint.marginals(z).clamp(min=1e-300).log(), z, steps, 2, torch.Generator().manual_seed(1)
    )
    return Sample(tokens=tokens, nfe=torch.full((ROWS,), steps), max_nfe=steps)


def test_with_few_steps_both_have_the_same_other_distribution():
    """χ² of two samples: no closed form is needed, and the joint itself is told apart."""
    from scipy.stats import chi2_contingency

    joint, steps = toy(), 2
    made = plain(joint, steps), AncestralSampler(steps=steps).sample(joint.denoiser, *masks(joint, ROWS))
    counts = [torch.bincount(joint.index(sample.tokens), minlength=8).tolist() for sample in made]
    assert chi2_contingency(counts).pvalue > 0.001
    assert all(fit(sample, joint) < 1e-4 for sample in made)
