"""Where an objective computes: its networks on their device, and what is in float64 where that is."""

from collections.abc import Callable
from typing import Any, Self

import attrs
import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.modeling.objectives import Batch
from atat_zoo.system.devices import exact_device, has_float64, moved


class OnDevice(nn.Module):
    """A module with a backbone. Parts with a state in float64 stay where they are if its device has none."""

    backbone: Any

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # What `to` and its like call.
        if has_float64(fn(torch.empty(0)).device):
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        modules = self._modules
        self._modules = {name: each for name, each in modules.items() if each is None or not _in_float64(each)}
        try:
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._modules = modules

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        device: torch.device = self.backbone.embedding.weight.device
        return device


def exact(batch: Batch) -> Batch:
    """Return a batch on a device with float64."""
    there = exact_device(batch.tokens.device)
    if there == batch.tokens.device:
        return batch
    return attrs.evolve(
        batch, **{name: moved(each, there) for name, each in attrs.asdict(batch, recurse=False).items()}
    )


def _in_float64(module: nn.Module) -> bool:
    return any(buffer.dtype == torch.float64 for buffer in module.buffers())
