"""Importance plus a bias of the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from atat_zoo.biases import Bias
    from atat_zoo.masking.position_module import PositionModule
    from atat_zoo.registry import Context


@component
class Position:
    """p_i = min(1, λ exp((I_i + a·bias_i) / T)): `importance` masking of importance and bias together.

    The bias is in [0, 1] like importance, and a is what a difference of 1 in it is
    worth in importance. Both are divided by T, so a high temperature is uniform
    here too.
    """

    name = "position"
    summary = "importance plus a bias of the position, fixed or learned from the loss"
    refs = ("doi:10.1007/0-387-34240-0",)
    direction = 1
    positional = True

    temperature: float = param(1.0, help="large: like uniform; small: the highest sum first", ge=1e-6, le=1e9)
    strength: float = param(
        1.0, help="a: the worth of the bias in importance; negative turns it round", ge=-1e3, le=1e3
    )
    bias: Bias = part("bias", "u_shape", help="where in the sequence to mask more")

    def build(self, context: Context) -> PositionModule:
        """Return a module with `probabilities`; it answers to `Adaptive` when its bias does."""
        from atat_zoo.masking.position_module import of_bias

        return of_bias(self.bias.build(context), self.temperature, self.strength)
