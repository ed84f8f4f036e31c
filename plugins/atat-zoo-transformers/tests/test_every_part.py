"""Every objective learns with a BERT, and every sampler writes with one."""

import pytest
import torch
from atat_zoo_checkpoints.model_import import import_model
from models import small

from atat_zoo import Model, Zoo
from atat_zoo.modeling.objectives import Batch, assemble
from atat_zoo.registry import Context

ZOO = Zoo.load()
SAMPLERS = {"block": "semi_autoregressive", "autoregressive": "left_to_right", "strided_causal": "strided"}
OBJECTIVES = {"block": ["objective.block_size=4"], "strided_causal": ["objective.stride=4", "sampler.stride=4"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    small("bert", folder)
    return str(folder)


# Those of the zoo: another plugin may want another kind of network.
SHIPPED = [name for name in ZOO.names("objective") if ZOO.describe("objective", name).distribution == "atat-zoo"]


@pytest.mark.parametrize("objective", SHIPPED)
def test_every_objective_learns_and_writes(objective, model, tmp_path):
    asked = [f"objective.use={objective}", "data.length=16", *OBJECTIVES.get(objective, [])]
    if objective in SAMPLERS:
        asked += [f"sampler.use={SAMPLERS[objective]}", "data.special_tokens=none"]
    run = import_model(model, tmp_path / "run", asked)
    assert len(run.sample(2, length=16).texts) == 2
    V = run.context.vocabulary_size
    module = assemble(run.experiment, Context(vocabulary_size=V, length=16, steps=10)).train()
    tokens = torch.randint(5, V, (8, 16), generator=torch.Generator().manual_seed(0))
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for step in range(40):
        index = torch.arange(8) + 64 * step
        batch = Batch(tokens=tokens, maskable=maskable, index=index, mean_maskable=torch.tensor(16.0), progress=0.1)
        loss = module.loss(batch)["loss"]
        loss.backward()
        module.end_step(lambda total: None, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert sum(losses[-8:]) < sum(losses[:8])


# Of the samplers that ask for more than a denoiser.
NEEDS = {
    "learned_order": ["objective.use=adaptive", "estimator.use=transformer"],
    "policy": ["estimator.use=transformer", "estimator.reads=z", "masking.use=reveal"],
    "speculative": ["objective.use=set_causal"],
}


@pytest.mark.parametrize("sampler", [name for name in ZOO.names("sampler") if name != "combination"])
def test_every_sampler_writes(sampler, model, tmp_path):
    run = import_model(model, tmp_path / "run", ["data.length=16", *NEEDS.get(sampler, [])])
    made = run.sample(2, sampler=sampler, seed=3)
    assert torch.all(made.sample.tokens < run.context.vocabulary_size)
    assert Model.from_run(tmp_path / "run").sample(2, sampler=sampler, seed=3).texts == made.texts
