"""An algorithm that changes gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from composer import Algorithm

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderAlgorithm:
    """Gradient centralisation, which subtracts the mean from the gradient of each output unit's weights."""

    name = "placeholder"
    summary = "subtracts the mean from the gradient of each output unit's weights"
    refs = ("arXiv:2004.01461",)

    def build(self) -> Algorithm:
        """Return Composer's algorithm."""
        from .centring import Centring

        return Centring()  # type: ignore[no-untyped-call]  # Composer gives its classes no types


@hookimpl
def atat_zoo_algorithm() -> list[type]:
    """Return the components in this package."""
    return [PlaceholderAlgorithm]
