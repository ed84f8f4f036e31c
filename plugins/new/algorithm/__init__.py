"""An algorithm that subtracts means from gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from composer import Algorithm

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderAlgorithm:
    """Gradient centralisation, which subtracts the mean from each row of the gradient of a weight matrix."""

    name = "placeholder"
    summary = "subtracts the mean from each row of the gradient of a weight matrix"
    refs = ("arXiv:2004.01461",)

    def build(self) -> Algorithm:
        """Return a Composer `Algorithm` that changes the gradients of every training step."""
        from .centring import Centring

        return Centring()  # type: ignore[no-untyped-call]  # Composer gives its classes no types


@hookimpl
def atat_zoo_algorithm() -> list[type]:
    """Return the algorithms in this package."""
    return [PlaceholderAlgorithm]
