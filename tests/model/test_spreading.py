"""A model larger than a device: its layers where there is room, and the same numbers."""

import sys

import attrs
import pytest
import torch

from atat_zoo import UserError
from atat_zoo.model import Model
from atat_zoo.model.spreading import is_spread, spread
from atat_zoo.objectives.assembly import assemble
from atat_zoo.tasks.fine_tuning import Recipe, fine_tuned
from tests.model.making import TABLE, L, tiny_model
from tests.virtual_gpu.device import VirtualGPU, on_cpu, to_gpu

LAYERS = {"backbone": TABLE["backbone"] | {"layers": 4, "output_bias": "none"}}


@pytest.fixture(scope="module")
def model():
    return tiny_model(**LAYERS)


def test_on_a_cpu_it_is_the_same_model(model, tmp_path, monkeypatch):
    model.save(tmp_path)
    monkeypatch.setattr("atat_zoo.model.model.torch_device", lambda name: {"auto": "cpu"}[name])
    loaded = Model.load(tmp_path, "spread")
    assert loaded.device == torch.device("cpu")
    assert loaded.sample(2, seed=1).texts == model.sample(2, seed=1).texts
    own, there = model.module.state_dict(), loaded.module.state_dict()
    assert list(own) == list(there)
    assert all(torch.equal(own[name], there[name]) for name in own)
    (tmp_path / "model.json").write_text((tmp_path / "model.json").read_text().replace('"layers": 4', '"layers": 3'))
    with pytest.raises(UserError, match=r"model\.safetensors is of another model than model\.json"):
        Model.load(tmp_path, "spread")


@pytest.mark.parametrize("fitting", [0, 1, 2, 4])
def test_layers_that_find_no_room_come_when_their_turn_does(model, fitting, monkeypatch):
    """On a virtual GPU, which counts what is sent to it."""
    weights = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    size = sum(p.numel() * p.element_size() for p in model.module.backbone.blocks[0].parameters())
    # As much room as the layers want, and that of the largest, which is kept free for those that come and go.
    room = {0: int(size * (fitting + (1 if 0 < fitting < 4 else 0) + 0.5) / 0.8), "cpu": 2**30}
    tokens, t = torch.arange(2 * L).view(2, L) % 256, torch.tensor([0.2, 0.7])
    context = attrs.evolve(model.context, device="cuda:0")
    with VirtualGPU() as gpu, torch.no_grad():
        module = spread(lambda: assemble(model.experiment, context), weights, "cuda:0", room).eval()
        assert is_spread(module)
        assert {p.device.type for p in module.parameters()} == {"cuda"}
        for _ in range(2):  # they go, and come again
            gpu.forget()
            hidden = module.backbone(to_gpu(tokens), to_gpu(t))
            assert str(hidden.device) == "cuda:0"
            sent = sum(times for place, times in gpu.uploads.items() if place.startswith("accelerate/"))
            assert sent == sum(1 for layer in module.backbone.blocks[fitting:] for _ in layer.parameters())
            logits = on_cpu(module.backbone.head(hidden))
    recipe = Recipe(epochs=1, batch_size=1, learning_rate=0.1)
    with pytest.raises(UserError, match="needs the whole model on its device; leave --device spread out"):
        fine_tuned(attrs.evolve(model, module=module), [[1]], torch.tensor([0]), recipe, outputs=2, seed=0)
    with torch.no_grad():
        expected = model.module.backbone.head(model.module.backbone(tokens, t))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_without_accelerate(model, tmp_path, monkeypatch):
    model.save(tmp_path)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(UserError, match=r"device 'spread' needs accelerate; pip install 'atat-zoo\[large\]'"):
        Model.load(tmp_path, "spread")
