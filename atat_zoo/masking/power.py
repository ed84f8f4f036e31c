"""Important tokens earlier in time: every token on its own power of one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


@component
class Power:
    """p_i = τ^{w_i} with w_i = exp(−I_i / T), and τ per row such that the mean over its maskable tokens is r.

    Each token follows α_i = 1 − τ^{w_i} in its own clock τ, the polynomial path of
    GenMD4; read backwards, tokens come back in a Plackett–Luce order with weights
    w. No token is ever sure before r = 1.
    """

    name = "power"
    summary = "important tokens earlier: each follows its own power of one clock, as in GenMD4"
    refs = ("arXiv:2406.04329",)
    direction = 1

    temperature: float = param(1.0, help="large: like uniform; small: the most important first", ge=1e-6, le=1e9)

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L], for importance [B, L], rate [B], maskable bool [B, L]."""
        from atat_zoo.diffusion.calibration import power_path

        return power_path(importance.double() / self.temperature, rate, maskable)
