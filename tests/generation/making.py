"""A tiny model that was never trained; zero-initialised outputs would make all that it says uniform."""

from __future__ import annotations

from typing import Any

import torch

from atat_zoo.experiment import from_table
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context

L = 24
ESTIMATOR = {"use": "transformer", "layers": 1, "width": 16, "heads": 2}
TABLE = {
    "name": "tiny",
    "tokenizer": "bytes",
    "backbone": {"use": "dit", "layers": 1, "width": 16, "heads": 2},
    "estimator": ESTIMATOR,
    "masking": "importance",
    "data": {"length": L, "special_tokens": "sequence"},
    "sampler": {"use": "ancestral", "steps": 6},
}

# Parts with weights and with a memory of the training.
SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "tokenizer": "bytes",
    "backbone": {"use": "dit", "layers": 1, "width": 16, "heads": 2, "output_bias": "unigram"},
    "estimator": {"use": "hybrid", "learned": {"use": "transformer", "layers": 1, "width": 8, "heads": 2}},
    "mask_rates": {"use": "adaptive", "bins": 2},
    "masking": {"use": "position", "bias": "running"},
    "curriculum": "dynamic",
    "target": {"use": "difficulty", "scale": "running"},
    "data": {"length": 12},
    "train": {"batch_size": 4},
}


def tiny_model(*, scale=0.1, without=(), ngram_prior=None, length=L, **changes):
    """Return a model of `TABLE` with changes, its weights noise of this scale."""
    changes["data"] = {"length": length} | changes.get("data", {"special_tokens": "sequence"})
    table = {key: value for key, value in (TABLE | changes).items() if key not in without}
    experiment = from_table(table)
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(()))
    context = Context(vocabulary_size=tokenizer.vocabulary_size, length=length, ngram_prior=ngram_prior)
    module = assemble(experiment, context).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data += scale * torch.randn(parameter.shape, generator=generator)
    return Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
