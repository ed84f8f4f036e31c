"""A backbone without queries and keys: attention weights depend only on the distance between tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.registry import Context

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderBackbone:
    """Layers that average the values of visible tokens, with one learned weight per signed distance up to `reach`."""

    name = "placeholder"
    summary = "mixes tokens with learned weights that depend only on their distance"
    refs = ("arXiv:2105.14103",)
    reads_time: ClassVar[bool] = False

    layers: int = param(2, help="number of layers", ge=1)
    width: int = param(64, help="width of the hidden states", ge=2)
    reach: int = param(16, help="distance beyond which the weight is constant", ge=1)

    def build(self, context: Context) -> nn.Module:
        """Return the network, which implements `atat_zoo.modeling.backbones.BackboneModule`."""
        from .network import Network

        return Network(context.vocabulary_size, self.layers, self.width, self.reach)


@hookimpl
def atat_zoo_backbone() -> list[type]:
    """Return the backbones in this package."""
    return [PlaceholderBackbone]
