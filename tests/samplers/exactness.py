"""How well samples fit a joint, for the tests beside."""

import torch
from scipy.stats import chisquare


def fit(sample, joint):
    """Return the p-value of χ² between the samples and the joint."""
    counts = torch.bincount(joint.index(sample.tokens), minlength=len(joint.p)).double()
    return chisquare(counts.numpy(), (joint.p * counts.sum()).numpy()).pvalue


def masks(joint, rows):
    """Return all-masked tokens [rows, L] and a seed each."""
    return torch.full((rows, joint.length), joint.mask_id), torch.arange(rows)
