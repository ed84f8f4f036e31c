"""Every token alike: the masking of MDLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Uniform:
    """p_i = r for every maskable token: importance is not looked at (MDLM, equation 3).

    The only strategy whose training loss, with weight 1/r, estimates the bound
    that is called perplexity.
    """

    name = "uniform"
    summary = "every maskable token with probability r, whatever its importance"
    refs = ("arXiv:2406.07524",)
    direction = 0

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p = r where maskable, else 0, float32 [B, L]; arguments as in `Masking`."""
        del importance
        return rate.float().unsqueeze(-1) * maskable
