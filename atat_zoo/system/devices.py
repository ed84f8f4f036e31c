"""Devices, by torch's names: which there are, what they are called, and what each of them can do.

`torch.accelerator` and the device's own module (`torch.cuda`, `torch.mps`, `torch.xpu`, …) are asked.

A network is on its device. What is computed around it, from random numbers and masks to the choices of a sampler, is in
float64, so that every device computes the same; where a device has none, as Apple's, that is on the CPU, and numbers
are `moved` to the network and back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from atat_zoo.system.errors import UserError

# Kinds of devices without float64: torch can be asked only by starting the device, and a study starts none of its own.
WITHOUT_FLOAT64 = frozenset({"mps"})
SPREAD = "spread"  # in place of a device: a model is to lie on all that there are; for all else it is `auto`

_Moved = TypeVar("_Moved")


def torch_device(name: str) -> str:
    """Return torch's name of a device, or raise `UserError` when there is none.

    `gpu` is torch's accelerator, whatever its kind, and `auto` likewise if it has float64, else the CPU; that of
    `spread` is where such a model begins.
    """
    wanted = name
    if name in ("auto", "gpu", SPREAD):
        there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if name != "gpu" and (there is None or not has_float64(there)):
            return "cpu"
        wanted = "cuda" if there is None else there.type
    try:
        device = torch.device(wanted)
        of_type = _module(device)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use cpu, gpu or mps") from None
    if device.type == "cpu":
        return "cpu"  # there is one CPU, whatever its number
    count = int(of_type.device_count()) if of_type.is_available() else 0
    if not count:
        kind = "GPU" if device.type == "cuda" else f"device of the kind {device.type}"
        raise UserError(f"device {name!r}: torch sees no {kind}; use cpu")
    if (device.index or 0) >= count:
        raise UserError(f"device {name!r}: torch sees {count} of them, counted from 0; use another, or gpu")
    return str(device)


def device_name(device: str | torch.device) -> str:
    """Return what a time belongs to: the name that the driver gives a device, or torch's name of its kind."""
    name = getattr(_module(device), "get_device_name", None)
    return torch.device(device).type if name is None else str(name(device))


def alike(device: str) -> list[str]:
    """Return a device and then the others of its kind."""
    own = torch.device(device)
    others = [f"{own.type}:{i}" for i in range(_module(device).device_count()) if i != (own.index or 0)]
    return [device, *others]


def free_memory(device: str) -> int:
    """Return the bytes that are free on a device, without what torch keeps there; 0 where nobody counts them."""
    of_type = _module(device)
    if (asked := getattr(of_type, "mem_get_info", None)) is None:
        return 0
    of_type.empty_cache()
    return int(asked(device)[0])


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what is queued."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Forget the peak of another training in this process, where the device counts one."""
    if (reset := getattr(_module(device), "reset_peak_memory_stats", None)) is not None:
        reset(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that torch has allocated on a device, or None where it does not count them."""
    peak = getattr(_module(device), "max_memory_allocated", None)
    return None if peak is None else int(peak(device))


def has_bf16(device: str | torch.device) -> bool:
    """Return whether a device says that it computes in bf16: hardware that emulates it is slower for it."""
    of_type = _module(device)
    if torch.device(device).type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    supported = getattr(of_type, "is_bf16_supported", None)
    if supported is None:
        return False
    with suppress(TypeError):  # only that of CUDA is asked about emulation
        return bool(supported(including_emulation=False))
    return bool(supported())


def has_float64(device: str | torch.device) -> bool:
    """Return whether a device computes in float64."""
    return torch.device(device).type not in WITHOUT_FLOAT64


def exact_device(device: str | torch.device) -> torch.device:
    """Return where float64 is for what is on a device: there, or on the CPU."""
    return torch.device(device if has_float64(device) else "cpu")


def move_to(value: _Moved, device: str | torch.device) -> _Moved:
    """Return a tensor on a device, or a tuple of tensors; float64 as float32 where the device has none.

    Anything else, and what is there already, is returned as it is.
    """
    if isinstance(value, tuple):
        return cast("_Moved", tuple(move_to(each, device) for each in value))
    if not isinstance(value, Tensor) or value.device == torch.device(device):
        return value
    narrow = value.dtype == torch.float64 and not has_float64(device)
    return cast("_Moved", (value.float() if narrow else value).to(device))


def _module(device: str | torch.device) -> Any:
    return torch.get_device_module(torch.device(device))
