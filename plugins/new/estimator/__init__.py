"""An importance estimator without parameters, for which repeated tokens are less important."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.registry import Context

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderEstimator:
    """Estimates a token's importance as 1 divided by the number of times that it occurs in its sequence."""

    name = "placeholder"
    summary = "tokens that are frequent in the sequence are less important"
    refs = ()
    reads: ClassVar[Literal["x", "z"]] = "x"
    reads_time: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    def build(self, context: Context) -> nn.Module:
        """Return the network, which implements `atat_zoo.modeling.estimators.EstimatorModule`."""
        from .module import Rarity

        return Rarity()


@hookimpl
def atat_zoo_estimator() -> list[type]:
    """Return the importance estimators in this package."""
    return [PlaceholderEstimator]
