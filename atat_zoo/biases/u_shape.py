"""More at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from atat_zoo.biases.u_shape_module import UShapeModule
    from atat_zoo.registry import Context


@component
class UShape:
    """bias_i = |2i/(L−1) − 1|^e: 1 at both ends of the sequence, 0 in the middle.

    Tokens at the ends have context on one side only, so they are harder to predict.
    """

    name = "u_shape"
    summary = "fixed: 1 at both ends of the sequence, 0 in the middle"
    refs = ()

    exponent: float = param(2.0, help="e: how flat the middle is", gt=0, le=100)

    def build(self, context: Context) -> UShapeModule:
        """Return a module with `values(length)`, for any length."""
        from atat_zoo.biases.u_shape_module import UShapeModule

        del context
        return UShapeModule(self.exponent)
