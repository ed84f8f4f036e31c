"""The estimator that knows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.registry import Context


@component
class Uniform:
    """Importance ½ for every token: masking and curriculum then treat all tokens alike."""

    name = "uniform"
    summary = "the same importance for every token"
    refs = ()

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule` without parameters."""
        from atat_zoo.estimators.fixed_module import Constant

        return Constant(0.5)
