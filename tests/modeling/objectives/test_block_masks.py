"""FlexAttention by a mask of blocks is attention by the dense mask; on a CPU it is slow and correct."""

from types import SimpleNamespace

import attrs
import pytest
import torch

from atat_zoo.modeling.objectives.denoising import DenoisingModule
from atat_zoo.registry import Context
from atat_zoo.training.trainer import compile_objective
from benchmarks.gpu.correct import refused
from tests.modeling.objectives.small_objectives import BACKBONE, BASELINES, build, full_batch

LENGTH, ROWS, V = 264, 2, 7  # more than one block, and not a multiple of it
CONTEXT = Context(vocabulary_size=V, length=LENGTH, width=16, steps=100, seed=5)
STRIDE = {"position_sets": {"use": "strided", "stride": 66}, "estimator": "uniform", "curriculum": "none"}
RANDOM = STRIDE | {"position_sets": {"use": "random", "sets": 40}}
CASES = {
    "block": (BASELINES["block"] | {"block_size": 8}, {}),
    "sets": (BASELINES["sets"] | {"gap_share": 0.5}, STRIDE),
    "sets from left to right": (
        {"use": "set_causal", "gap_share": 0.0, "prompt_share": 0.0},
        STRIDE | {"position_sets": "left_to_right"},
    ),
}
IN_ANY_ORDER = BASELINES["sets"] | {"subset_share": 0.4}, RANDOM
# The most blocks that are computed, of all: turns that are interleaved leave none that could be skipped.
SEEN = {"block": 0.6, "sets from left to right": 0.8}


def batch(step=0):
    return full_batch(torch.randint(0, V, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step)), step)


def trained(module, steps=1):
    """The losses of steps and the gradient of their sum."""
    losses = []
    for step in range(steps):
        loss = module.loss(batch(step))["loss"]
        loss.backward()
        losses.append(loss.item())
    return losses, {name: weight.grad for name, weight in module.named_parameters()}


def network(case):
    objective, parts = CASES.get(case, IN_ANY_ORDER)
    # Dropout draws by the place of a token in what the network reads. The kernel wants heads of 16 at least.
    backbone = BACKBONE | {"dropout": 0.2, "checkpoint_activations": True, "heads": 1}
    return build(objective, context=CONTEXT, batch_size=ROWS, backbone=backbone, **parts)


@pytest.fixture
def masks(monkeypatch):
    """Attend in blocks, and note the masks; skipped where torch has the gradient of it on a GPU alone."""
    if why := refused():
        pytest.skip(why)
    made = []
    monkeypatch.setattr(DenoisingModule, "attends_in_blocks", lambda module, tokens: True)

    def watched(case):
        module = network(case)
        module.backbone.register_forward_pre_hook(
            lambda _, __, named: made.append(named["attention"]), with_kwargs=True
        )
        return module

    return made, watched


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_loss_and_the_gradient_by_the_dense_mask(case, request):
    expected, gradient = trained(network(case))
    made, watched = request.getfixturevalue("masks")  # only now
    found, its = trained(watched(case))
    assert found == pytest.approx(expected, rel=1e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(its[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert made
    for mask in made:
        seen = mask.kv_num_blocks + mask.full_kv_num_blocks
        assert int(seen.sum()) <= SEEN.get(case, 1.0) * seen.numel() * seen.shape[-1]


def test_turns_in_any_order_have_dense_masks_as_each_has_a_shape_of_its_own(masks):
    made, watched = masks
    trained(watched("in any order"))
    assert made
    assert all(isinstance(mask, torch.Tensor) for mask in made)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["block", "sets"])
def test_it_is_compiled_once_whatever_the_masks(case, monkeypatch, masks):
    from torch._dynamo.utils import counters

    _, watched = masks
    expected, gradient = trained(watched(case), steps=2)
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile(model, **options | {"backend": "aot_eager"}))
    torch._dynamo.reset()
    counters.clear()
    module = network(case)
    module.context = attrs.evolve(module.context, compiled=True)
    compile_objective(module)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found, its = trained(module, steps=2)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert found == pytest.approx(expected, rel=1e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(its[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_only_a_compiled_training_on_a_gpu_has_such_masks():
    module, tokens = network("sets"), SimpleNamespace(is_cuda=True)
    assert not module.attends_in_blocks(tokens)
    module.context = attrs.evolve(module.context, compiled=True)
    assert module.attends_in_blocks(tokens)
    assert not module.attends_in_blocks(torch.zeros(1))
    assert not module.eval().attends_in_blocks(tokens)
    narrow = build(CASES["block"][0], context=CONTEXT, batch_size=ROWS, backbone=BACKBONE | {"heads": 2})
    assert not narrow.backbone.takes_block_masks
