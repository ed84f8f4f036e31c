"""Find out which devices exist, what they are called and what they can do, and move tensors to them.

`torch.accelerator` and the device's own module (`torch.cuda`, `torch.mps`, `torch.xpu`, …) provide this information. A
network runs on its device. Everything around the network, from random numbers and masks to the choices of a sampler, is
computed in float64, so that all devices give the same results. For a device without float64, such as Apple's, this part
runs on the CPU, and `move_to` copies tensors between the two.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from atat_zoo.system.errors import UserError

# Device types without float64: asking torch would start the device, which a study must not do.
WITHOUT_FLOAT64 = frozenset({"mps"})
SPREAD = "spread"  # in place of a device: distribute a model over all devices; otherwise the same as `auto`

_Moved = TypeVar("_Moved")


def torch_device(name: str) -> str:
    """Return torch's name for a device; raise a `UserError` if the device does not exist.

    `gpu` is torch's accelerator, whatever its type. `auto`, and the first device of `spread`, is the accelerator if
    there is one with float64, and otherwise the CPU.
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
        return "cpu"  # there is only one CPU, whatever its index
    count = int(of_type.device_count()) if of_type.is_available() else 0
    if not count:
        kind = "GPU" if device.type == "cuda" else f"device of type {device.type}"
        raise UserError(f"device {name!r}: torch sees no {kind}; use cpu")
    if (device.index or 0) >= count:
        all_of_it = "only one device" if count == 1 else f"{count} devices"
        raise UserError(
            f"device {name!r}: torch sees {all_of_it} of this type, numbered from 0; use a lower number, or gpu"
        )
    return str(device)


def device_name(device: str | torch.device) -> str:
    """Return the driver's name for a device, or torch's name for its type, to label timings."""
    name = getattr(_module(device), "get_device_name", None)
    return torch.device(device).type if name is None else str(name(device))


def alike(device: str) -> list[str]:
    """Return torch's names of a device and of all other devices of its type, the given device first."""
    own = torch.device(device)
    others = [f"{own.type}:{i}" for i in range(_module(device).device_count()) if i != (own.index or 0)]
    return [device, *others]


def free_memory(device: str) -> int:
    """Return the free memory of a device in bytes after emptying torch's cache, or 0 if unknown."""
    of_type = _module(device)
    if (asked := getattr(of_type, "mem_get_info", None)) is None:
        return 0
    of_type.empty_cache()
    return int(asked(device)[0])


def synchronize(device: torch.device) -> None:
    """Wait until a device has completed all queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Reset a device's peak memory, if torch tracks it, so that `peak_memory` ignores what this process did before."""
    if (reset := getattr(_module(device), "reset_peak_memory_stats", None)) is not None:
        reset(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory, in bytes, that torch has allocated on a device, or None if it is not tracked."""
    peak = getattr(_module(device), "max_memory_allocated", None)
    return None if peak is None else int(peak(device))


def has_bf16(device: str | torch.device) -> bool:
    """Return whether a device supports bf16 in hardware; emulated bf16 would be slower than float32."""
    of_type = _module(device)
    if torch.device(device).type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    supported = getattr(of_type, "is_bf16_supported", None)
    if supported is None:
        return False
    with suppress(TypeError):  # only CUDA's function has this parameter
        return bool(supported(including_emulation=False))
    return bool(supported())


def has_float64(device: str | torch.device) -> bool:
    """Return whether a device supports float64."""
    return torch.device(device).type not in WITHOUT_FLOAT64


def exact_device(device: str | torch.device) -> torch.device:
    """Return the device for float64 computations on the tensors of a device: the device itself, or the CPU."""
    return torch.device(device if has_float64(device) else "cpu")


def move_to(value: _Moved, device: str | torch.device) -> _Moved:
    """Return a tensor or a tuple of tensors on a device; float64 becomes float32 if the device does not support it.

    Other values, and tensors already on the device, are returned unchanged.
    """
    if isinstance(value, tuple):
        return cast("_Moved", tuple(move_to(each, device) for each in value))
    if not isinstance(value, Tensor) or value.device == torch.device(device):
        return value
    narrow = value.dtype == torch.float64 and not has_float64(device)
    return cast("_Moved", (value.float() if narrow else value).to(device))


def _module(device: str | torch.device) -> Any:
    return torch.get_device_module(torch.device(device))
