"""Names of devices: torch's own, `gpu`, and what is none."""

import pytest
import torch

from atat_zoo.errors import UserError
from atat_zoo.model.model import torch_device
from atat_zoo.training.requirements import device_of


def test_there_is_one_cpu():
    assert torch_device("cpu") == torch_device("cpu:3") == "cpu"


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_a_gpu_if_there_is_one(monkeypatch, there, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(there))
    assert torch_device("auto") == device
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of("auto") == ("cuda:3" if there else "cpu")
    assert device_of("cpu") == "cpu"


@pytest.mark.parametrize("name", ["", "foo", "cpu:x", "gpu:0"])
def test_what_is_no_device_is_a_sentence(name):
    with pytest.raises(UserError, match=f"device '{name}' is none that torch knows; use cpu or gpu"):
        torch_device(name)


def test_a_gpu_must_be_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (torch_device("gpu"), torch_device("cuda:1")) == ("cuda", "cuda:1")
    with pytest.raises(UserError, match="device 'cuda:2': torch sees 2 of them, counted from 0; use another, or gpu"):
        torch_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device 'cuda:1': torch sees no GPU; use cpu"):
        torch_device("cuda:1")
