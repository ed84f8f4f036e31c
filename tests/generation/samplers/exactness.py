"""How well samples fit a joint, and models with random weights, for the tests beside."""

import torch
from scipy.stats import chisquare

from atat_zoo import Zoo
from atat_zoo.registry import Context

BACKBONE = {"use": "dit", "layers": 3, "width": 16, "heads": 2, "max_length": 64}


def fit(sample, joint):
    """Return the p-value of χ² between the samples and the joint."""
    counts = torch.bincount(joint.index(sample.tokens), minlength=len(joint.p)).double()
    return chisquare(counts.numpy(), (joint.p * counts.sum()).numpy()).pvalue


def masks(joint, rows):
    """Return all-masked tokens [rows, L] and a seed each."""
    return torch.full((rows, joint.length), joint.mask_id), torch.arange(rows)


def random_model(objective, vocabulary_size, length, std=0.4, **backbone):
    """Return the module of an objective with random weights, in float64."""
    context = Context(vocabulary_size=vocabulary_size, length=length, width=16, steps=10)
    torch.manual_seed(0)
    tables = {"backbone": BACKBONE | backbone, "noise": "linear"}
    parts = {kind: Zoo.load().build(kind, table, context) for kind, table in tables.items()}
    built = Zoo.load().spec("objective", objective).build(context, parts, 8)
    for name, parameter in built.named_parameters():
        if "norm" not in name and "scale" not in name:
            torch.nn.init.normal_(parameter, std=std)
    return built.double().eval()
