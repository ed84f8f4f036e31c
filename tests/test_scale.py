"""docs/results/scale.md against what its command prints, and the formulas of memory against what torch allocates."""

import json
import weakref
from pathlib import Path

import attrs
import pytest
import torch
from composer.distributed import prepare_ddp_module
from torch import distributed
from torch.utils._pytree import tree_leaves

from atat_zoo.diffusion import attention, chunks
from atat_zoo.experiment import from_table, load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.training import cost
from benchmarks import roofline, scale
from benchmarks.cuda_autocast import cuda_autocast
from tests.drawn import drawn_batch

PAGE = (Path(__file__).parents[1] / "docs" / "results" / "scale.md").read_text(encoding="utf-8")
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
    known = cost.state(backbone.weights(V))
    assert size(weights) == known["weights"] == known["EMA"]
    assert size(weight.grad for weight in weights) == known["gradients"]
    assert size(moments) == known["AdamW"]


@pytest.mark.parametrize(
    "backbone",
    [{}, {"checkpoint_activations": True}, {"dropout": 0.1}, {"layers": 2, "width": 64, "heads": 8, "mlp_ratio": 3.0}],
)
def test_what_autograd_saves_under_autocast_is_within_three_hundredths_of_the_formula(backbone, monkeypatch):
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
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cuda_autocast():
        module.backbone(batch.tokens)
    found = sum(nbytes for nbytes, _ in kept.values()) - 2 * spec.matrices  # those that are cast
    known = cost.activations(spec, ROWS, LENGTH, compiled=False)
    if spec.checkpoint_activations:  # the layer that is recomputed comes in the backward pass
        layers = spec.shape[0]
        whole = cost.activations(attrs.evolve(spec, checkpoint_activations=False), ROWS, LENGTH, compiled=False)
        last = ROWS * LENGTH * (4 * spec.shape[1] + 8)
        known, found = known - (whole - last) // layers, found + 2 * spec.matrices  # none of which is cast and kept
    assert found == pytest.approx(known, rel=0.03)


class Live(roofline.Stream):
    """Counts the bytes of what a step has made and not let go, and the most of them at once."""

    def __init__(self, masked):
        super().__init__(masked, mixed=False)
        self.live, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in filter(torch.is_tensor, tree_leaves(out)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata)
        self.peak = max(self.peak, sum(self.live.values()))
        return out


def two_layers(monkeypatch):
    """The small preset with two layers, as a step of the roofline has it, on chunks of logits as on a GPU."""
    monkeypatch.setattr(chunks, "LOGITS", chunks.ON_ACCELERATOR)
    step = roofline.Step(overrides=("backbone.layers=2",))
    return step, load("owt-small/mdlm", step.overrides).parts["backbone"]


@pytest.mark.slow
def test_the_peak_of_a_whole_step_is_within_three_hundredths_of_the_formula(monkeypatch):
    """It is in the loss, where the weights, which are there before, and the gradients, which come, do not count."""
    step, backbone = two_layers(monkeypatch)
    masked, words = step.rows * step.length // 2, step.vocabulary_size
    live = Live(masked)
    monkeypatch.setattr(roofline, "Stream", lambda *_: live)
    attrs.evolve(step, compiled=False).work()
    parts = cost.state(backbone.weights(words))["AdamW"], cost.casts(backbone, words)
    kept = cost.activations(backbone, step.rows, step.length, compiled=False)
    assert live.peak == pytest.approx(sum(parts) + kept + cost.head(backbone, words, masked, compiled=False), rel=0.03)


@pytest.mark.slow
def test_what_a_compiled_forward_pass_hands_to_the_backward_pass_is_within_four_hundredths(monkeypatch):
    step, backbone = two_layers(monkeypatch)
    kept = step.work()[2]
    layers = cost.activations(backbone, step.rows, step.length, compiled=True)
    assert kept["DiTModule"] - 2 * backbone.matrices == pytest.approx(layers, rel=0.04)
    # Of the head's chunk, half of the masked positions: logits in bf16; what it reads, and the weights in bf16.
    positions, (_, width, _), words = step.rows * step.length // 4, backbone.shape, step.vocabulary_size
    assert kept["Head"] == pytest.approx(2 * (positions * words + (positions + words) * width), rel=0.01)


def test_sharding_divides_what_belongs_to_weights_and_gathers_a_layer():
    plans = {(plan.backbone.preset, plan.gpus, plan.sharded): plan for plan in scale.plans(scale.assumptions([]))}
    whole, sharded = plans["2.7b", 64, False], attrs.evolve(plans["2.7b", 64, True], rows=1)
    _, width, _ = whole.backbone.shape
    words, layer = scale.VOCABULARY * width, 12 * width**2
    of_weights = 24 * whole.weights + 2 * (32 * layer + words)  # float32: DDP's buckets are the sixth; and in bf16
    # In bf16 all of them, as whole; in float32, with gradients, a layer and what is in none.
    saved = of_weights - (20 * whole.weights // 64 + 2 * (32 * layer + words) + 8 * (words + layer))
    assert whole.memory(compiled=True) - sharded.memory(compiled=True) == saved
    # What has no row, as the page says.
    assert sum(cost.state(plans["6.7b", 64, True].weights).values()) > 80e9


def test_composer_has_ddp_copy_all_gradients_into_buckets():
    module, _, backbone = nano()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = prepare_ddp_module(module, find_unused_parameters=False)
        assert not wrapped.gradient_as_bucket_view
        buckets = [bucket.buffer() for bucket in wrapped.reducer._get_zeros_like_grad_buckets()]
    finally:
        distributed.destroy_process_group()
    assert size(buckets) == cost.buckets(backbone.weights(V), gpus=2)


def test_the_page_has_what_its_command_prints_and_the_assumptions_are_arguments():
    given = scale.assumptions([])
    assert scale.table(given) in PAGE
    assert scale.experiments(given) in PAGE
    half, whole = (scale.plans(scale.assumptions(["--utilisation", share]))[0].speed for share in ("0.2", "0.4"))
    assert whole == pytest.approx(2 * half)
    for plan in scale.plans(given):
        assert plan.memory(compiled=True) < plan.memory(compiled=False) < 76e9, "every plan fits its GPU"


def test_a_dry_run_says_what_the_table_has_for_the_same_step(atat):
    experiment = load(scale.RECIPE, ["train.batch_size=256", "train.microbatch_size=32", "backbone.tied=true"])
    of = cost.cost(experiment, gpus=8, vocabulary=scale.VOCABULARY)
    plan = scale.plans(scale.assumptions([]))[1]
    assert (of.weights, of.rows, of.memory_compiled) == (plan.weights, 32, plan.memory(compiled=True))
    assert of.tokens / of.seconds == pytest.approx(plan.speed)
    assert of.dollars == pytest.approx(of.seconds / 3600 * 8 * 3)
    code, out, _ = atat("train", "text8/documented_short", "--dry-run", "--gpus", "2", "--json")
    assert code == 0
    assert json.loads(out)["weights"] == cost.cost(load("text8/mdlm")).weights
    dollars = json.loads(out)["dollars"]
    words = atat("train", "text8/documented_short", "--dry-run", "--gpus", "2", "--price", "12")[1]
    assert f"cost    ${4 * dollars:,.0f}\n" in words
