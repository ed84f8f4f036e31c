"""Models larger than one device (`--device spread`), whose layers are spread over devices or loaded when needed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.chunks import ON_ACCELERATOR
from atat_zoo.system.devices import alike, free_memory, move_to
from atat_zoo.system.machine import needing_no_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The memory to leave free: a share of the device, and where the logits are, three times their maximum in float32.
_SHARE, _LOGITS = 0.2, 3 * 4 * ON_ACCELERATOR


@contextmanager
def without_weights() -> Iterator[None]:
    """In a `with` block, build modules whose parameters take no memory until `load_state_dict(…, assign=True)`."""
    owner: Any = nn.Module
    register = owner.register_parameter

    def register_bare(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # a tied tensor has already been replaced
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    owner.register_parameter = register_bare
    try:
        with needing_no_memory():
            yield
    finally:
        owner.register_parameter = register


def spread(module: nn.Module, device: str, room: Mapping[str, int] | None = None) -> None:
    """Spread an objective's module, which is on the CPU, over all devices of the same type.

    The layers, which are the members of the backbone's outermost `nn.ModuleList`s, fill the devices in order, beginning
    with `device`, which also holds everything else. Layers that do not fit stay memory-mapped from the weight file and
    are copied to `device` for each forward pass. Such a module is for inference only.

    Args:
        module: the module, changed in place; not changed on a CPU, where the operating system pages the mapped weights.
        device: the device of the module's inputs and outputs.
        room: bytes available for layers on each device, in the order of filling; by default most of the free memory.
    """
    if torch.device(device).type == "cpu":
        return
    layers = list(dict.fromkeys(_layers(module.get_submodule("backbone"))))
    apart = {id(tensor) for layer in layers for *_, tensor in _tensors(layer)}
    _move(module, device, leave=apart)
    if room is None:
        free = {name: free_memory(name) for name in alike(device)}
        room = {name: int((1 - _SHARE) * there) for name, there in free.items()}
        room[device] = min(room[device], free[device] - _LOGITS)
    sizes = [sum(tensor.nbytes for *_, tensor in _tensors(layer)) for layer in layers]
    places = _places(sizes, room)
    if None in places:  # memory for a copy of the largest layer that does not fit
        places = _places(sizes, {**room, device: room[device] - max(sizes)})
    if any(place != device for place in places):
        changed: Any = module
        changed.layers_elsewhere = True
        # Autocast keeps its copy of a weight with a gradient for as long as a text is generated.
        module.requires_grad_(False)
    for layer, place in zip(layers, places, strict=True):
        if place is None:
            _bring(layer, device)
        else:
            _move(layer, place)
            if place != device:
                _visit(layer, place, device)


def is_spread(module: nn.Module) -> bool:
    """Return whether some layers of a module are on other devices, or are copied to the device when needed."""
    return bool(getattr(module, "layers_elsewhere", False))


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)


def _places(sizes: list[int], room: Mapping[str, int]) -> list[str | None]:
    """Return the device of each layer, or None for a layer that does not fit."""
    left, places = [*room.items()], list[str | None]()
    for size in sizes:
        while left and left[0][1] < size:
            left.pop(0)
        places.append(left[0][0] if left else None)
        if left:
            left[0] = (left[0][0], left[0][1] - size)
    return places


def _tensors(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yield each parameter and buffer of a module with its dict and its name."""
    for part in module.modules():
        for own in (part._parameters, part._buffers):
            yield from ((own, name, tensor) for name, tensor in own.items() if tensor is not None)


def _move(module: nn.Module, device: str, leave: frozenset[int] | set[int] = frozenset()) -> None:
    """Move all tensors of a module except those in `leave`, compared by identity; tied tensors stay tied."""
    there = dict[int, Tensor]()
    for own, name, tensor in list(_tensors(module)):
        if id(tensor) not in leave:
            if id(tensor) not in there:
                made = tensor.detach().to(device)
                there[id(tensor)] = nn.Parameter(made, False) if isinstance(tensor, nn.Parameter) else made
            own[name] = there[id(tensor)]


def _bring(layer: nn.Module, device: str) -> None:
    """Copy the weights of a layer to a device for its forward pass."""
    kept = list[tuple[dict[str, Any], str, Tensor]]()

    def before(layer: nn.Module, _: Any) -> None:
        kept[:] = _tensors(layer)
        _move(layer, device)

    def after(*_: Any) -> None:
        for own, name, tensor in kept:
            own[name] = tensor

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after, always_call=True)


def _visit(layer: nn.Module, place: str, device: str) -> None:
    """Move the inputs of a layer to the layer's device, and its outputs back."""

    def before(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return move_to(given, place), {key: move_to(value, place) for key, value in named.items()}

    def after(_: nn.Module, __: Any, made: Any) -> Any:
        return move_to(made, device)

    layer.register_forward_pre_hook(before, with_kwargs=True)
    layer.register_forward_hook(after)
