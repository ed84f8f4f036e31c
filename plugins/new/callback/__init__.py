"""A callback that logs the norm of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from composer import Callback

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderCallback:
    """Logs the L2 norm of all parameters as `weights/norm` every few training steps."""

    name = "placeholder"
    summary = "logs the norm of the weights"
    refs = ()

    every: int = param(10, help="number of training steps between measurements", ge=1)

    def build(self) -> Callback:
        """Return a Composer `Callback` that logs the norm every `every` training steps."""
        from .monitor import WeightMonitor

        return WeightMonitor(self.every)


@hookimpl
def atat_zoo_callback() -> list[type]:
    """Return the callbacks in this package."""
    return [PlaceholderCallback]
