"""The names of devices, which there are, and where a model is on one that has no float64."""

from types import SimpleNamespace

import pytest
import torch

from atat_zoo import UserError
from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.generation.model import Model
from atat_zoo.system import devices
from atat_zoo.system.devices import alike, device_name, exact_device, free_memory, move_to, torch_device
from atat_zoo.training.memory import device_of, peak_memory
from tests.generation.test_model import small  # a model trained for a few steps
from tests.modeling.objectives.small_objectives import build


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_a_gpu_if_there_is_one(monkeypatch, there, device):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(there))
    assert torch_device("auto") == device
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of("auto") == ("cuda:3" if there else "cpu")
    assert device_of("cpu") == "cpu"


def test_what_is_no_device_for_this_is_a_sentence(monkeypatch):
    for name in ("", "foo", "cpu:x", "gpu:0"):
        with pytest.raises(UserError, match=f"unknown device '{name}'; use cpu, gpu or mps"):
            torch_device(name)
    with pytest.raises(UserError, match="device 'xpu': torch sees no device of type xpu; use cpu"):
        torch_device("xpu")
    only(monkeypatch, "cuda")
    with pytest.raises(UserError, match=r'train.device = "cuda:0": each process uses the GPU of its rank'):
        device_of("cuda:0")
    with pytest.raises(UserError, match='precision "bf16": torch has no autocast for the device \'meta\'; use "fp32"'):
        computes_in_bf16("bf16", "meta")


def test_a_gpu_must_be_there(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (torch_device("gpu"), torch_device("cuda:1"), torch_device("spread")) == ("cuda", "cuda:1", "cuda")
    assert (alike("cuda"), alike("cuda:1")) == (["cuda", "cuda:1"], ["cuda:1", "cuda:0"])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", {"cuda": (5, 9)}.get)
    assert (free_memory("cuda"), free_memory("mps")) == (5, 0)
    with pytest.raises(UserError, match="only evaluation and generation support it"):
        device_of("spread")
    with pytest.raises(
        UserError,
        match="device 'cuda:2': torch sees 2 devices of this type, numbered from 0; use a lower number, or gpu",
    ):
        torch_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device 'cuda:1': torch sees no GPU; use cpu"):
        torch_device("cuda:1")
    assert torch_device("cpu") == torch_device("cpu:3") == "cpu"  # there is one


def only(monkeypatch, kind, **has):
    """Make a kind of device the only accelerator, with one of it."""
    there = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, **has)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device(kind))
    monkeypatch.setattr(torch, "get_device_module", lambda device: there if device.type == kind else torch.cpu)


@pytest.mark.parametrize("native", [True, False])
def test_hardware_that_emulates_bf16_does_not_count(monkeypatch, native):
    only(monkeypatch, "cuda", is_bf16_supported=lambda including_emulation=True: native or including_emulation)
    assert devices.has_bf16("cuda") is native


def test_apples_gpu_is_taken_when_it_is_named(monkeypatch):
    only(monkeypatch, "mps")
    assert torch_device("gpu") == torch_device("mps") == device_of("gpu") == device_of("mps") == "mps"
    assert torch_device("auto") == device_of("auto") == "cpu"  # it has no float64
    assert exact_device("mps") == torch.device("cpu")
    assert device_name("mps") == "mps"
    assert peak_memory(torch.device("mps")) > 1 << 20  # of the process: it counts none of its own
    with pytest.raises(UserError, match="device 'mps:1': torch sees only one device of this type"):
        torch_device("mps:1")


def test_a_device_that_composer_does_not_have_evaluates_and_samples(monkeypatch):
    only(monkeypatch, "xpu", get_device_name=lambda _: "Arc", is_bf16_supported=lambda: True)
    assert torch_device("auto") == torch_device("gpu") == "xpu"
    assert exact_device("xpu") == torch.device("xpu")
    assert (device_name("xpu"), computes_in_bf16("auto", "xpu")) == ("Arc", True)
    assert device_of("auto") == "cpu"
    with pytest.raises(
        UserError, match=r'train.device = "xpu": Composer does not support .* use one of "cpu", "gpu", "mps"'
    ):
        device_of("xpu")


def test_parts_in_float64_stay_where_it_is(monkeypatch):
    parts = {"mask_rates": {"use": "adaptive", "bins": 2}, "masking": {"use": "position", "bias": "running"}}
    objective = {"use": "mdlm"}
    module = build(objective, **parts)
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"meta"})
    module.to("meta")
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert {b.device.type for b in module.buffers() if b.dtype == torch.float64} == {"cpu"}
    assert {b.device.type for b in module.backbone.buffers()} == {"meta"}
    monkeypatch.undo()
    assert {b.device.type for b in build(objective, **parts).to("meta").buffers()} == {"meta"}


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")  # which has no values
def test_a_model_is_loaded_with_its_network_there_and_its_texts_where_float64_is(monkeypatch, tmp_path):
    model = small(mask_rates={"use": "adaptive", "bins": 2})
    model.save(tmp_path)
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"meta"})
    there = Model.load(tmp_path, "meta")
    assert (there.device, there.context.device) == (torch.device("meta"), "cpu")
    assert torch.equal(there.module.rates.sums, model.module.rates.sums)
    text_generator = there.text_generator("fp32")
    assert (text_generator.device, text_generator.network) == ("cpu", torch.device("meta"))


def test_what_is_moved_is_narrowed_only_where_it_must_be(monkeypatch):
    x = torch.ones(2, dtype=torch.float64)
    assert move_to(x, "cpu") is x
    assert move_to((x, None, "causal"), "meta")[0].dtype == torch.float64
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"meta"})
    there = move_to((x, torch.ones(2, dtype=torch.int64), None, "causal"), "meta")
    assert [each.dtype for each in there[:2]] == [torch.float32, torch.int64]
    assert there[2:] == (None, "causal")


def test_the_peak_of_another_training_is_forgotten_where_one_is_counted(monkeypatch):
    reset = []
    devices.reset_peak_memory(torch.device("cpu"))
    only(monkeypatch, "cuda", reset_peak_memory_stats=reset.append)
    devices.reset_peak_memory(torch.device("cuda", 0))
    assert reset == [torch.device("cuda", 0)]
