"""The optimizer takes each parameter once, and Muon steps near-orthogonally."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from atat_zoo import Zoo
from atat_zoo.training import memory
from atat_zoo.training.gradients import Muon, orthogonalise
from tests import forked


def optimizer(net, name, **parameters):
    return Zoo.load().spec("optimizer", {"use": name, **parameters}).build(net)


class Net(nn.Module):
    """An embedding, two linear layers and a gain."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.up = nn.Linear(4, 12)
        self.down = nn.Linear(12, 4, bias=False)
        self.gain = nn.Parameter(torch.ones(4))
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.down(torch.relu(self.up(self.embedding(x)))) * self.gain)


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])
def test_only_matrices_decay_and_muon_takes_the_inner_ones(name):
    net = Net()
    made = optimizer(net, name, weight_decay=0.1)
    for group in made.param_groups:
        assert {p.ndim >= 2 for p in group["params"]} == {group["weight_decay"] > 0}
    muon = [p for group in made.param_groups if group.get("muon") for p in group["params"]]
    expected = [net.up.weight, net.down.weight] if name == "muon" else []
    assert list(map(id, muon)) == list(map(id, expected))


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_orthogonalised_steps_have_singular_values_near_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = orthogonalise(matrix)
    assert made.shape == matrix.shape
    assert made.dtype == matrix.dtype
    values = torch.linalg.svdvals(made.double())
    assert values.min() > 0.3
    assert values.max() < 1.3
    # The directions are the gradient's own: U Vᵀ of its singular value decomposition.
    u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    cosine = nn.functional.cosine_similarity(made.double().flatten(), (u @ v).flatten(), dim=0)
    assert cosine > 0.95
    # The size of the gradient does not matter, to the rounding of bfloat16.
    assert torch.allclose(made, orthogonalise(matrix * 1000), atol=0.15)


def test_muon_decays_then_steps_by_the_orthogonal_matrix_of_its_momentum():
    layer = nn.Linear(4, 12, bias=False)
    made = Muon([{"params": [layer.weight], "weight_decay": 0.5, "muon": True}], lr=0.1)
    before, gradient = layer.weight.detach().clone(), torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    layer.weight.grad = gradient.clone()
    made.step()
    # The first average is a share of the gradient, and of an update the direction alone counts.
    expected = before * (1 - 0.1 * 0.5) - 0.1 * 3**0.5 * orthogonalise(gradient)
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])
def test_every_parameter_is_stepped(name):
    net = Net()
    before = [p.detach().clone() for p in net.parameters()]
    net(torch.arange(7)).sum().backward()
    optimizer(net, name, weight_decay=0.1).step()
    assert all(not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))


def trained(by_closure):
    """Return the weights after some steps of Muon."""
    torch.manual_seed(0)
    net = Net()
    made = optimizer(net, "muon")
    assert all(group["fused"] for group in made.param_groups)

    def closure():
        made.zero_grad()
        loss = net(torch.arange(7)).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        made.step(closure if by_closure else (closure(), None)[1])
    return [p.detach() for p in net.parameters()]


def test_a_closure_that_clears_the_gradients_clears_those_of_all_groups():
    assert all(map(torch.equal, trained(by_closure=True), trained(by_closure=False)))


@pytest.mark.parametrize("refused", [None, -1, -2, -4])
def test_glibc_gets_numbers_that_are_an_int_of_c_and_says_whether_it_takes_them(monkeypatch, refused):
    """Trimming, padding and mapping are its parameters -1, -2 and -4; ctypes would cut a larger number in silence."""
    told = {}

    def mallopt(parameter, value):
        told[parameter] = value
        return int(parameter != refused)

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert memory.keep_freed_memory() == (refused is None)
    assert told.keys() == {-1, -2, -4}
    assert told[-4] == 0  # no block is mapped
    assert told[-1] == 2**31 - 1  # nothing is given back
    assert 2**20 < told[-2] < 2**31
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert memory.keep_freed_memory() is False


@pytest.mark.parametrize("said", [None, "7"])
def test_few_kernels_are_kept_unless_the_environment_says_how_many(monkeypatch, said):
    environment = {} if said is None else {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": said}
    monkeypatch.setattr(memory.os, "environ", environment)
    memory.forget_old_shapes()
    assert environment == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": said or "64"}


@pytest.mark.slow
@pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch was built without oneDNN")
def test_kernels_of_old_shapes_are_forgotten(tmp_path):
    code = """
import torch
from atat_zoo.training.memory import forget_old_shapes
forget_old_shapes()
weight = torch.ones(64, 64, 3, 3)
for width in [*range(32, 132)] * 2:
    torch.nn.functional.conv2d(torch.ones(4, 64, 8, width), weight)
"""
    done = forked.run([], tmp_path, code=code, env={"ONEDNN_VERBOSE": "2"})
    lines = [line for line in done.stdout.splitlines() if ",convolution," in line]
    assert sum(",exec," in line for line in lines) == 200
    assert sum("cache_miss" in line for line in lines) == 200
