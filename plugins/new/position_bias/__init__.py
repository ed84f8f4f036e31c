"""A periodic position bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.registry import Context

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderBias:
    """The bias ½ − ½ cos(2πi/period) at position i, a fixed wave along the sequence."""

    name = "placeholder"
    summary = "fixed wave between 0 and 1"
    refs = ()

    period: float = param(16.0, help="wavelength in positions", gt=1)

    def build(self, context: Context) -> nn.Module:
        """Return the module, an `atat_zoo.modeling.masking.position_bias.PositionBiasModule`."""
        from .module import Waves

        return Waves(self.period)


@hookimpl
def atat_zoo_position_bias() -> list[type]:
    """Return the position biases in this package."""
    return [PlaceholderBias]
