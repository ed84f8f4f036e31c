"""A small run that knows the alphabet's first six letters in a circle, and models with random weights."""

import numpy as np
import pytest
import torch

from atat_zoo.experiment import from_table
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import Batch, assemble
from atat_zoo.registry import Context

CIRCLE = "abcdef"
L = 12
BPE = {"use": "bpe", "vocabulary_size": 300}


def made(objective="mdlm", sampler="confidence_threshold", special="sequence", trained=0, timed=False, merged=()):
    """Return a model of 29 tokens, or of pairs merged in these texts: random weights, or trained some steps."""
    table = {
        "name": "small",
        "seed": 3,
        "tokenizer": {"use": "characters", "special_tokens": True, "unknown": "space"} if not merged else BPE,
        "backbone": {"use": "dit", "layers": 1, "width": 32, "heads": 2, "time_conditioning": timed},
        "objective": objective,
        "sampler": sampler,
        "data": {"length": L, "special_tokens": special},
        "train": {"batch_size": 16},
    }
    experiment = from_table(table)
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(merged))
    V = tokenizer.vocabulary_size
    context = Context(vocabulary_size=V, length=L, counts=np.ones(V, np.int64), seed=3, tokenizer=tokenizer)
    module = assemble(experiment, context)
    draw = torch.Generator().manual_seed(0)
    if not trained:
        with torch.no_grad():  # larger than a training begins with, so that its predictions differ
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for step in range(trained):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / trained)
        start = torch.randint(6, (16, 1), generator=draw)
        tokens = torch.tensor(tokenizer.encode(CIRCLE))[(start + torch.arange(L)) % 6]
        if special == "sequence":
            tokens[:, 0], tokens[:, -1] = tokenizer.bos, tokenizer.eos
        batch = Batch(
            tokens=tokens,
            maskable=torch.ones_like(tokens, dtype=torch.bool),
            index=torch.arange(16) + 16 * step,
            mean_maskable=torch.tensor(float(L)),
            progress=step / trained,
        )
        optimizer.zero_grad()
        module.loss(batch)["loss"].backward()
        optimizer.step()
    return Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module.eval(), step=trained)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a run that knows the circle."""
    folder = tmp_path_factory.mktemp("run")
    model = made(trained=300)
    model.save(folder / "model")
    (folder / "resolved.toml").write_text(model.experiment.to_toml())
    return folder
