"""A model larger than a device: layers where there is room, or brought when it is their turn, and the same numbers."""

import attrs
import pytest
import torch

from atat_zoo import UserError
from atat_zoo.evaluation.tasks.fine_tuning import Recipe, fine_tuned
from atat_zoo.generation import spreading
from atat_zoo.generation.model import Model
from atat_zoo.generation.spreading import is_spread, spread, without_weights
from atat_zoo.modeling.objectives import assemble
from atat_zoo.system.machine import require
from tests.generation.making import TABLE, L, tiny_model
from tests.virtual_gpu.device import VirtualGPU, on_cpu, to_gpu

LAYERS = {"backbone": TABLE["backbone"] | {"layers": 4, "output_bias": "none"}}
GPU = "cuda:0"


@pytest.fixture(scope="module")
def model():
    return tiny_model(**LAYERS)


def bare(model, context):
    """A module whose weights are those of a model, and no copies."""
    with without_weights():
        module = assemble(model.experiment, context)
    module.load_state_dict(model.module.state_dict(), assign=True)
    return module.eval()


def test_on_a_cpu_it_is_the_same_model(model, tmp_path):
    model.save(tmp_path)
    loaded = Model.load(tmp_path, spreads=True)
    assert loaded.placement == "cpu"
    assert loaded.sample(2, seed=1).texts == model.sample(2, seed=1).texts
    own, there = model.module.state_dict(), loaded.module.state_dict()
    assert list(own) == list(there)
    assert all(torch.equal(own[name], there[name]) for name in own)
    (tmp_path / "model.json").write_text((tmp_path / "model.json").read_text().replace('"layers": 4', '"layers": 3'))
    with pytest.raises(UserError, match=r"model\.safetensors and model\.json belong to different models"):
        Model.load(tmp_path, spreads=True)


def test_what_is_built_without_weights_has_no_memory_and_is_given_it_without_a_copy(model):
    weights = model.module.state_dict()
    with without_weights():
        require(1e30, "nothing", "weights", "")
        module = assemble(model.experiment, model.context)
    assert all(parameter.is_meta for parameter in module.parameters())
    assert not any(buffer.is_meta for name, buffer in module.named_buffers() if name not in weights)
    module.load_state_dict(weights, assign=True)
    assert all(tensor.data_ptr() == weights[name].data_ptr() for name, tensor in module.state_dict().items())
    with pytest.raises(UserError, match="nothing needs about"):
        require(1e30, "nothing", "weights", "")
    with without_weights():
        first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        second.weight = first.weight
    assert first.weight is second.weight
    assert not torch.nn.Linear(2, 2).weight.is_meta


@pytest.mark.parametrize(
    ("gpu", "other", "places"),
    [
        (4, 0, [GPU] * 4),
        (2, 0, [GPU, None, None, None]),  # one more finds no room: the others need that of one when they come
        (1, 0, [None] * 4),
        (0, 4, ["cpu"] * 4),
        (2, 2, [GPU, GPU, "cpu", "cpu"]),
        (2, 1, [GPU, "cpu", None, None]),
    ],
)
def test_layers_that_find_no_room_come_when_it_is_their_turn(model, gpu, other, places):
    """On a virtual GPU, beside which the CPU is a second one; what is on both cannot be multiplied."""
    size = sum(p.nbytes for p in model.module.backbone.blocks[0].parameters())
    tokens, t = torch.arange(2 * L).view(2, L) % 256, torch.tensor([0.2, 0.7])
    with VirtualGPU() as virtual, torch.no_grad():
        module = bare(model, attrs.evolve(model.context, device=GPU))
        spread(module, GPU, {GPU: gpu * size, "cpu": other * size})
        assert is_spread(module) == (places != [GPU] * 4)
        own = [str(next(layer.parameters()).device) for layer in module.backbone.blocks]
        assert own == [place or "cpu" for place in places]
        assert {str(p.device) for p in (*module.estimator.parameters(), *module.backbone.head.parameters())} == {GPU}
        before = {name: id(tensor) for name, tensor in module.named_parameters()}
        for _ in range(2):  # they go, and come again
            virtual.forget()
            hidden = module.backbone(to_gpu(tokens), to_gpu(t))
            assert str(hidden.device) == GPU
            brought = sum(n for place, n in virtual.uploads.items() if place == "generation/spreading.py _move")
            assert brought == places.count(None) * len(list(module.backbone.blocks[0].parameters()))
            logits = on_cpu(module.backbone.head(hidden))
        assert {name: id(tensor) for name, tensor in module.named_parameters()} == before
    with torch.no_grad():
        expected = model.module.backbone.head(model.module.backbone(tokens, t))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_without_numbers_the_free_memory_of_all_devices_of_the_kind_is_filled(model, monkeypatch):
    size = sum(p.nbytes for p in model.module.backbone.blocks[0].parameters())
    free = {GPU: spreading._LOGITS + 1.5 * size, "cpu": 10 * size}
    monkeypatch.setattr(spreading, "free_memory", free.get)
    monkeypatch.setattr(spreading, "alike", lambda device: [*free] if device == GPU else [])
    with VirtualGPU():
        module = bare(model, attrs.evolve(model.context, device=GPU))
        spread(module, GPU)
        own = [str(next(layer.parameters()).device) for layer in module.backbone.blocks]
    assert own == [GPU, "cpu", "cpu", "cpu"]


def test_a_backbone_without_a_list_of_layers_is_on_the_device(model):
    with VirtualGPU():
        module = torch.nn.Module()
        module.backbone = torch.nn.Linear(2, 2)
        spread(module, GPU, {GPU: 0})
        assert {str(p.device) for p in module.parameters()} == {GPU}
        assert not is_spread(module)


def test_a_layer_that_fails_leaves_its_weights_where_they_were(model):
    with VirtualGPU(), torch.no_grad():
        module = bare(model, attrs.evolve(model.context, device=GPU))
        spread(module, GPU, {GPU: 0})
        with pytest.raises(TypeError, match="missing"):
            module.backbone.blocks[0](to_gpu(torch.zeros(1, 2, 16)))
        assert {str(p.device) for p in module.backbone.blocks[0].parameters()} == {"cpu"}
        recipe = Recipe(epochs=1, batch_size=1, learning_rate=0.1)
        with pytest.raises(UserError, match="needs the whole model on one device; leave out --device spread"):
            fine_tuned(attrs.evolve(model, module=module), [[1]], torch.tensor([0]), recipe, outputs=2, seed=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(model, tmp_path, monkeypatch):
    """From the mapped file, with room for three of four layers, of which one is left free for those that come."""
    model.save(tmp_path)
    size = sum(p.nbytes for p in model.module.backbone.blocks[0].parameters())
    monkeypatch.setattr(spreading, "free_memory", lambda _: spreading._LOGITS + 3 * size)
    loaded = Model.load(tmp_path, GPU, spreads=True)
    layers = loaded.module.backbone.blocks
    tokens, t = torch.arange(2 * L).view(2, L) % 256, torch.tensor([0.2, 0.7])
    with torch.no_grad():
        for _ in range(2):
            assert [str(next(layer.parameters()).device) for layer in layers] == [GPU, GPU, "cpu", "cpu"]
            found = loaded.module.backbone.head(loaded.module.backbone(tokens.cuda(), t.cuda())).cpu()
            expected = model.module.backbone.head(model.module.backbone(tokens, t))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(loaded.sample(2, seed=1).texts) == 2
