"""The objective of score entropy discrete diffusion, with an absorbing state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from atat_zoo.registry import Context


@component
class SEDDObjective:
    """Score entropy of the absorbing process (Lou et al., ICML 2024, equation 7 and section 4.2).

    The network models the ratios s_y ≈ p_t(z with y at position i) / p_t(z) at masked positions. With ρ = α/(1 − α)
    their true value given x is ρ·1[y = x], so the head gives f with s_y = ρ e^{f_y}. A mask is entered at rate
    σ = −α'/α, and with K(a) = a (log a − 1) and S = Σ_y e^{f_y} the loss of a masked position is

        σ Σ_y [ s_y − ρ 1[y = x] log s_y + K(ρ 1[y = x]) ]  =  σρ [ S − f_x − 1 ]  =  ω [ CE + (S − 1 − log S) ]

    where ω = σρ = −α'/(1 − α) is the weight of `mdlm` and CE the cross-entropy of softmax f. So it is the loss of
    `mdlm` and a penalty, at least 0, for not being normalised. A constant offset makes S = 1 before training.

    Its perplexity is that of p_θ = softmax f under uniform masking; the bound with the penalty, which is the one
    of the paper, is reported as `sedd`.
    """

    name = "sedd"
    summary = "score entropy with an absorbing state: cross-entropy and a penalty for not being normalised"
    refs = ("arXiv:2310.16834",)
    uses: ClassVar[frozenset[str]] = frozenset({"backbone", "noise"})
    exact: ClassVar[bool] = False
    weight: Literal["nelbo", "simple"] = param("nelbo", help="ω: −α'/(1 − α), which is 1/t for linear noise, or 1")

    def build(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from atat_zoo.objectives.sedd_module import SEDDModule

        return SEDDModule(context, parts, batch_size, weight=self.weight)
