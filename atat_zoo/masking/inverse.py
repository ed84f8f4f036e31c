"""Important tokens less often, by water-filling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


@component
class Inverse:
    """p_i = min(1, λ exp(−I_i / T)), with λ per row such that the mean over its maskable tokens is r.

    The control of `importance`: the same calibration, the opposite preference.
    """

    name = "inverse"
    summary = "important tokens less often: the control of importance masking"
    refs = ("doi:10.1007/0-387-34240-0",)
    direction = -1

    temperature: float = param(1.0, help="large: like uniform; small: the least important first", ge=1e-6, le=1e9)

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L], for importance [B, L], rate [B], maskable bool [B, L]."""
        from atat_zoo.diffusion.calibration import water_fill

        return water_fill(importance.double() / -self.temperature, rate, maskable)
