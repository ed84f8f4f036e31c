"""What docs/scale.md says, against what its command prints, and the formulas of memory against what torch allocates."""

from pathlib import Path

import pytest
import torch

from atat_zoo.diffusion import attention
from atat_zoo.experiment import from_table
from atat_zoo.objectives.assembly import assemble
from atat_zoo.registry import Context
from benchmarks import scale
from tests.drawn import drawn_batch

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
V, ROWS, LENGTH = 300, 4, 64


def nano(**backbone):
    """The objective of a nano model, a batch for it, and its backbone."""
    table = {"name": "x", "data": {"length": LENGTH}, "train": {"batch_size": ROWS}}
    experiment = from_table({**table, "backbone": {"preset": "nano", **backbone}})
    module = assemble(experiment, Context(vocabulary_size=V, length=LENGTH)).train()
    batch = drawn_batch(V, ROWS, LENGTH)
    return module, batch, experiment.parts["backbone"]


def size(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def test_weights_gradients_and_optimizer_take_what_the_formula_says():
    module, batch, backbone = nano()
    optimizer = torch.optim.AdamW(module.parameters())
    module.loss(batch)["loss"].backward()
    optimizer.step()
    weights = list(module.parameters())
    # Besides, torch counts the steps of each parameter, in a tensor of four bytes.
    moments = [each for of in optimizer.state.values() for name, each in of.items() if name != "step"]
    known = scale.state(backbone.weights(V))
    assert size(weights) == known["weights"] == known["moving average"]
    assert size(weight.grad for weight in weights) == known["gradients"]
    assert size(moments) == known["AdamW"]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("backbone", [{}, {"dropout": 0.1}, {"layers": 2, "width": 64, "heads": 8, "mlp_ratio": 3.0}])
def test_activations_are_within_three_hundredths_of_the_formula(bf16, backbone, monkeypatch):
    monkeypatch.setattr(attention, "SHORT", 0)  # the fused kernel, which a GPU has whatever the length
    module, batch, spec = nano(**backbone)
    of_weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in of_weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that no address is used twice
        return tensor

    module.begin(batch)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        module.backbone(batch.tokens)
    found = sum(nbytes for nbytes, _ in kept.values())
    cast = 2 * spec.matrices if bf16 else 0
    assert found - cast == pytest.approx(scale.activations(spec, ROWS, LENGTH, bf16=bf16), rel=0.03)


def test_the_page_has_what_its_command_prints():
    assert scale.table(scale.assumptions([])) in PAGE


def test_the_assumptions_are_arguments():
    half, whole = (scale.plans(scale.assumptions(["--utilisation", share]))[0].speed for share in ("0.2", "0.4"))
    assert whole == pytest.approx(2 * half)
    assert all(plan.memory < 75e9 for plan in scale.plans(scale.assumptions([]))), "every plan fits its GPU"
