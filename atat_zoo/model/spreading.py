"""A model that is larger than a device: its layers lie where there is room, by accelerate (`--device spread`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atat_zoo.devices import SPREAD
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_FOR_LAYERS = 0.8  # of what is free on a device; activations and logits want the rest


def spread(
    build: Callable[[], nn.Module],
    weights: Mapping[str, Tensor],
    device: str,
    room: Mapping[int | str, int] | None = None,
) -> nn.Module:
    """Return what `build` makes, with these weights: there is never a second copy of them.

    Layers, the members of the backbone's outermost `nn.ModuleList`s, fill the accelerators in their order. Those that
    find no room stay where the weights are, in the mapped file, and are brought to the device each time that their turn
    comes. All else is on the device. On a CPU everything stays in the file, of which the system keeps in memory what
    there is room for.

    Args:
        build: makes an objective with its parts.
        weights: its tensors by name, on the CPU.
        device: where what is computed with a model begins and ends.
        room: free bytes by number of the accelerator, and under "cpu"; asked for when absent.

    Raises:
        UserError: when accelerate is not installed.
        RuntimeError: when the weights are of another module.
    """
    try:
        from accelerate import infer_auto_device_map, init_empty_weights
        from accelerate.hooks import AlignDevicesHook, add_hook_to_module
        from accelerate.utils import get_max_memory, set_module_tensor_to_device
    except ImportError:
        raise UserError(f"device {SPREAD!r} needs accelerate; pip install 'atat-zoo[large]'") from None
    with init_empty_weights(include_buffers=False):
        module = build()
    module.load_state_dict(weights, assign=True)
    if torch.device(device).type == "cpu":
        return module
    layers = nn.ModuleList(_layers(module.get_submodule("backbone")))
    apart = {id(tensor) for tensor in (*layers.parameters(), *layers.buffers())}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if id(tensor) not in apart:
            set_module_tensor_to_device(module, name, device)
    there = get_max_memory() if room is None else room
    share: Any = {place: int(_FOR_LAYERS * free) for place, free in there.items()}
    whole = list({type(layer).__name__ for layer in layers})
    places = infer_auto_device_map(layers, share, no_split_module_classes=whole, clean_result=False)
    for number, layer in enumerate(layers):
        place = places[str(number)]
        stays = place in ("cpu", "disk")
        hook = AlignDevicesHook(execution_device=device if stays else place, offload=stays, io_same_device=True)
        hook.place_submodules = True
        add_hook_to_module(layer, hook)
    return module


def is_spread(module: nn.Module) -> bool:
    """Return whether layers of a module are elsewhere than the rest of it."""
    return any(hasattr(part, "_hf_hook") for part in module.modules())


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)
