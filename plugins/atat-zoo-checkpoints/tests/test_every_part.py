"""Every objective learns with the published networks, and every sampler writes with one."""

import pytest
import torch
from atat_zoo_checkpoints.importing import import_model
from models import V, small

from atat_zoo import Zoo
from atat_zoo.modeling.objectives import Batch

SAMPLERS = {"block": "semi_autoregressive", "autoregressive": "left_to_right", "strided": "strided"}
OBJECTIVES = {"block": ["objective.size=4"], "strided": ["objective.stride=4", "sampler.stride=4"]}
# Of the samplers that ask for more than a denoiser.
NEEDS = {
    "learned_order": ["objective.use=adaptive", "estimator.use=transformer"],
    "policy": ["estimator.use=transformer", "estimator.reads=z", "masking.use=reveal"],
}


@pytest.fixture(scope="module", params=["mdlm", "llada"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    small(request.param, folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("objective", Zoo.load().names("objective"))
def test_every_objective_has_a_loss_and_writes(objective, model, tmp_path):
    asked = [f"objective.use={objective}", "data.length=16", "backbone.dtype=float32", *OBJECTIVES.get(objective, [])]
    asked = [each for each in asked if "dtype" not in each or "llada" in model]
    if objective in SAMPLERS:
        asked += [f"sampler.use={SAMPLERS[objective]}", "data.special=none"]
    run = import_model(model, tmp_path / "run", asked)
    assert len(run.sample(2, length=16).texts) == 2
    tokens = torch.randint(0, V, (64, 16), generator=torch.Generator().manual_seed(0))
    whole, mean = torch.ones_like(tokens, dtype=torch.bool), torch.tensor(16.0)
    batch = Batch(tokens=tokens, maskable=whole, index=torch.arange(64), mean_maskable=mean, progress=0.1)
    module = run.module.train()
    module.loss(batch)["loss"].backward()
    assert all(weight.grad.isfinite().all() for weight in module.backbone.blocks.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [name for name in Zoo.load().names("sampler") if name != "combination"])
def test_every_sampler_writes(sampler, model, tmp_path):
    run = import_model(model, tmp_path / "run", ["data.length=16", *NEEDS.get(sampler, [])])
    made = run.sample(2, sampler=sampler, seed=3)
    assert torch.all((made.sample.tokens >= 0) & (made.sample.tokens < V))
