"""From an experiment's specifications to a module: the same for a seed, for every part of every kind."""

import pytest
import torch
from small_objectives import full_batch

from atat_zoo import Zoo
from atat_zoo.experiment import from_table
from atat_zoo.modeling.estimators import UniformEstimator
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from tests.generation.making import SMALL

L = SMALL["data"]["length"]


def test_assembling_touches_no_generator_of_the_caller_and_depends_on_the_seed_alone():
    experiment = from_table(SMALL)
    context = Context(vocabulary_size=258, length=L, seed=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = assemble(experiment, context)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = assemble(experiment, context)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    other = assemble(experiment, Context(vocabulary_size=258, length=L, seed=4))
    assert not torch.equal(one.backbone.embedding.weight, other.backbone.embedding.weight)
    # The backbone starts alike in every experiment of a seed, so that a comparison compares nothing else.
    plain = assemble(from_table(SMALL | {"estimator": "uniform", "masking": "uniform"}), context).backbone
    assert all(torch.equal(a, b) for a, b in zip(one.backbone.parameters(), plain.parameters(), strict=True))


def test_an_estimator_need_not_inherit_from_its_contract(monkeypatch):
    class Half(torch.nn.Module):
        def forward(self, tokens, embedded, t, maskable):
            return torch.full(tokens.shape, 0.5)

    monkeypatch.setattr(UniformEstimator, "build", lambda self, context: Half())
    experiment = from_table(SMALL | {"estimator": "uniform", "masking": "uniform"})
    module = assemble(experiment, Context(vocabulary_size=258, length=L))
    assert (module.estimator.reads, module.estimator.reads_time, module.estimator.reads_hidden) == ("x", False, False)


@pytest.mark.slow
def test_every_part_of_every_kind_can_be_assembled():
    zoo = Zoo.load()
    context = Context(vocabulary_size=258, length=L)
    tokens = torch.arange(4 * L).view(4, L)
    # With the bound's own weights the bell is refused.
    simple = {"objective": {"use": "mdlm", "weight": "simple"}}
    on_z = {"estimator": {**SMALL["estimator"]["learned"], "reads": "z"}, "masking": "uniform"}
    shown = {"reveal", "planner_aware"}  # which go by the importance of what is hidden
    for kind in ("noise", "mask_rates", "estimator", "masking", "mask_drawing", "curriculum", "target"):
        for name in zoo.names(kind):
            reads = on_z if name in shown else {"masking": "uniform"} if name == "loss_prediction" else {}
            module = assemble(from_table(SMALL | simple | reads | {kind: name}), context)
            loss = module.loss(full_batch(tokens, progress=0.5))["loss"]
            assert loss.isfinite(), (kind, name)
            loss.backward()
