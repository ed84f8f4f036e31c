"""What the virtual GPU refuses, counts and computes."""

import gc

import pytest
import torch
from torch import nn

from atat_zoo.system import devices
from tests.virtual_gpu.device import CUDA, MixedDevicesError, NoFloat64Error, VirtualGPU, on_cpu, to_gpu

X = torch.arange(6.0).view(2, 3)
MASK = X > 2


@pytest.fixture
def gpu():
    with VirtualGPU() as gpu:
        yield gpu


def waits(gpu):
    return {what: count for (what, _), count in gpu.waits.items()}


def test_weights_that_are_tied_stay_so():
    module = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    module[1].weight = module[0].weight
    with VirtualGPU():
        to_gpu(module)
        assert module[1].weight is module[0].weight


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + X,
        lambda x: torch.where(MASK, x, x),
        lambda x: torch.stack([x, X]),
        lambda x: x.index_put((to_gpu(torch.tensor([0, 1])),), X),
        lambda x: X[to_gpu(torch.tensor([0]))],
        lambda x: nn.functional.linear(x, torch.ones(2, 3)),
        lambda x: torch.ones(()).add_(x.sum()),
    ],
)
def test_mixed_devices_are_refused(gpu, mix):
    with pytest.raises(MixedDevicesError, match=r"on cpu.* at tests/virtual_gpu/test_virtual_device\.py .*lambda"):
        mix(to_gpu(X))


@pytest.mark.parametrize(
    ("what", "wait"),
    [
        ("_local_scalar_dense", lambda x: float(x[0, 0])),
        ("_local_scalar_dense", lambda x: 1 if (x > 9).any() else 2),
        ("tolist", lambda x: x.tolist()),
        ("equal", lambda x: torch.equal(x, x)),
        ("nonzero", lambda x: torch.where(x > 2)),
        ("masked_select", lambda x: x.masked_select(x > 2)),
        ("bincount", lambda x: x.flatten().long().bincount(minlength=6)),
        ("repeat_interleave", lambda x: x.repeat_interleave(to_gpu(torch.tensor([1, 2])), dim=0)),
        ("index by mask", lambda x: x[x > 2]),
        ("index by mask", lambda x: x.clone().index_put_((x > 2,), torch.ones(3, device=x.device))),
        ("copy to the host", lambda x: x.cpu()),
        ("copy to the host", lambda x: X.clone().copy_(x)),
        ("upload", lambda x: X.to(x.device)),
        ("upload", lambda x: x.clone().copy_(X)),
        ("upload", lambda x: torch.tensor([1, 2], device=x.device)),
        ("upload", lambda x: x[torch.tensor([0, 1])]),
        ("upload", lambda x: x[MASK]),
    ],
)
def test_what_waits_is_counted_with_its_place(gpu, what, wait):
    wait(to_gpu(X))
    (found,) = gpu.waits
    assert found[0] == what
    assert found[1].startswith("tests/virtual_gpu/test_virtual_device.py ")
    assert sum(gpu.uploads.values()) == (what == "upload")
    gpu.forget()
    assert not gpu.waits
    assert not gpu.uploads


@pytest.mark.parametrize(
    "free",
    [
        lambda x: x.clone().__setitem__(x > 2, 0.0),
        lambda x: x.clone().masked_scatter_(x > 2, x),
        lambda x: x[(x > 2).long()],
        lambda x: x.repeat_interleave(to_gpu(torch.tensor([1, 2])), dim=0, output_size=3),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch.full((2,), 3.0, device=x.device),
        lambda x: x + torch.tensor(1.0),  # a number of the CPU may take part
        lambda x: x.clone().fill_(torch.tensor(1.0)),
    ],
)
def test_what_does_not_wait_is_not(gpu, free):
    free(to_gpu(X))
    assert not gpu.waits


def test_a_copy_that_nobody_waits_for_is_an_upload_alone(gpu):
    X.to(CUDA, non_blocking=True)
    assert not gpu.waits
    assert sum(gpu.uploads.values()) == 1


def test_backward_counts_what_it_waits_for(gpu):
    x = to_gpu(X).requires_grad_()
    x[MASK.to(CUDA, non_blocking=True)].sum().backward()
    assert ("index by mask", "backward of IndexBackward0") in gpu.waits
    gpu.forget()
    torch.zeros(2, 3, device=CUDA).masked_scatter(x.detach() > 2, x[:, 1:]).sum().backward()
    assert waits(gpu) == {"masked_scatter_backward": 1}


def test_what_cannot_be_done_on_a_gpu_cannot_be_done_here(gpu):
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        to_gpu(X).numpy()


def test_afterwards_all_is_as_it_was():
    before = (torch.tensor, torch.as_tensor, torch.cuda._lazy_init, gc.isenabled())
    with VirtualGPU():
        assert torch.tensor is not before[0]
    assert (torch.tensor, torch.as_tensor, torch.cuda._lazy_init, gc.isenabled()) == before


@pytest.mark.parametrize(
    "plant",
    [
        lambda x: x.double(),
        lambda x: x.sum(dtype=torch.float64),
        lambda x: torch.tensor([1.0], dtype=torch.float64, device=x.device),
        lambda x: torch.zeros(2, dtype=torch.float64).to(x.device),
    ],
)
def test_a_narrow_one_has_no_float64(plant):
    with VirtualGPU(narrow=True):
        x = to_gpu(X)
        assert on_cpu(devices.move_to(torch.ones(3, dtype=torch.float64), x.device)).dtype == torch.float32
        with pytest.raises(NoFloat64Error, match=r"no float64, at tests/virtual_gpu/test_virtual_device\.py .*lambda"):
            plant(x)
    with VirtualGPU():
        assert plant(to_gpu(X)).dtype == torch.float64


def test_nor_what_cuda_alone_has():
    with VirtualGPU(narrow=True), pytest.raises(AssertionError, match="CUDA alone"):
        torch.cuda.synchronize(CUDA)
