"""Position biases: where in a sequence to mask more, added to importance by position masking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.registry import Context


class BiasModule(Protocol):
    """What `build` returns: an `nn.Module`; one that learns answers to `Adaptive`."""

    def values(self, length: int) -> Tensor:
        """Return the bias of each position, float32 [length] in [0, 1]."""
        ...


class Bias(Protocol):
    """A component of the kind bias."""

    name: str

    def build(self, context: Context) -> nn.Module:
        """Return a `BiasModule`."""
        ...
