"""Every objective learns with the convolutions, and every sampler writes with them: backbones are interchangeable."""

import pytest
import torch

from atat_zoo import Model, UserError, Zoo
from atat_zoo.experiment import from_table
from atat_zoo.modeling.objectives import Batch, assemble
from atat_zoo.registry import Context

L, V = 16, 7
ZOO = Zoo.load()
SAMPLERS = {"block": "semi_autoregressive", "autoregressive": "left_to_right"}
SAMPLERS["strided_causal"] = {"use": "strided", "stride": 4}
OBJECTIVES = {"block": {"block_size": 4}, "strided_causal": {"stride": 4}}
# Of the samplers that ask for more than a denoiser.
NEEDS = {
    "learned_order": {"objective": {"use": "adaptive"}, "estimator": {"use": "transformer"}},
    "policy": {"estimator": {"use": "kmer"}, "masking": {"use": "reveal"}},
    "speculative": {"objective": {"use": "set_causal"}},
}


def untrained(**tables):
    """Return a model that has learned nothing."""
    backbone = {"use": "gated_convolution", "width": 32, "layers": 3}
    table = {"name": "small", "tokenizer": {"use": "dna"}, "backbone": backbone, "data": {"length": L}} | tables
    experiment = from_table(table)
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(()))
    context = Context(vocabulary_size=V, length=L, steps=10, tokenizer=tokenizer)
    module = assemble(experiment, context).eval()
    return Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)


@pytest.mark.parametrize("objective", ZOO.names("objective"))
def test_every_objective_learns_and_writes(objective):
    tables = {"objective": {"use": objective, **OBJECTIVES.get(objective, {})}}
    if objective in SAMPLERS:
        tables["sampler"] = SAMPLERS[objective]
    model = untrained(**tables)
    assert set("".join(model.sample(2, length=L).texts)) <= set("ACGTN")
    module = model.module.train()
    tokens = torch.tensor([0, 2, 3, 1]).repeat(8, L // 4)
    how = {"maskable": torch.ones_like(tokens, dtype=torch.bool), "mean_maskable": torch.tensor(float(L))}
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for step in range(30):
        loss = module.loss(Batch(tokens=tokens, index=torch.arange(8) + 64 * step, progress=0.1, **how))["loss"]
        loss.backward()
        module.end_step(lambda total: None, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


@pytest.mark.parametrize("sampler", [name for name in ZOO.names("sampler") if name != "combination"])
def test_every_sampler_writes(sampler, tmp_path):
    model = untrained(**NEEDS.get(sampler, {}))
    made = model.sample(2, sampler=sampler, seed=3)
    assert int(made.sample.tokens.max()) < V
    model.save(tmp_path)
    assert Model.load(tmp_path).sample(2, sampler=sampler, seed=3).texts == made.texts


def test_a_gap_is_filled_and_another_tokenizer_has_no_other_strand():
    for filled in untrained().infill("ACGT[MASK:3]TTT", 4, seed=1).texts:
        assert filled.startswith("ACGT")
        assert filled.endswith("TTT")
        assert len(filled) <= 10  # BOS and EOS are drawn, too, and are no text
    with pytest.raises(UserError, match="requires the bases A, C, G and T"):
        untrained(tokenizer={"use": "bytes"}, backbone={"use": "gated_convolution", "reverse_complement": True})
