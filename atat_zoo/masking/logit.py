"""Important tokens more often, by a shift of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


@component
class Logit:
    """p_i = σ(I_i / T + c), with c per row such that the mean over its maskable tokens is r.

    With independent draws this is the distribution of largest entropy for a given
    rate and a given mean importance of what is masked.
    """

    name = "logit"
    summary = "important tokens more often: a sigmoid of importance, shifted to the rate"
    refs = ("doi:10.1007/0-387-34240-0",)
    direction = 1

    temperature: float = param(1.0, help="large: like uniform; small: the most important first", ge=1e-6, le=1e9)

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L], for importance [B, L], rate [B], maskable bool [B, L]."""
        from atat_zoo.diffusion.calibration import logit_shift

        return logit_shift(importance.double() / self.temperature, rate, maskable)
