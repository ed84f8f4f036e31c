"""The objective of discrete denoising diffusion with T steps and an absorbing state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from atat_zoo.registry import Context


@component
class D3PMObjective:
    """The variational bound of T absorbing steps, x₀-parametrised (Austin et al., NeurIPS 2021, sections 3.3 and 3.4).

    The network predicts p̃_θ(x_0 | z) over V + 1 outcomes, the mask among them, with probability μ, and the reverse
    step is p_θ(x_s | x_t) = Σ_{x_0} q(x_s | x_t, x_0) p̃_θ(x_0 | z). For t = i/T, s = (i − 1)/T and
    β = (α_s − α_t)/(1 − α_t), the probability with which a masked token is revealed, a masked position costs

        KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) = −β log p̃_θ(x) + (1 − β) log[(1 − β) / (1 − β(1 − μ))]

    and a visible one nothing. The paper's equation 4 weighs each x_0 by q(x_t | x_0) besides, which is the same with
    the mask's logit shifted by −log(1 − α_t); without the shift μ means the same at every t. The KL is least at μ = 0,
    where it is β times the cross-entropy, so that T → ∞ gives `mdlm`. The mask's logit starts where μ = 1/(V + 1): no
    more than a token of a uniform prediction gets, because all it can do is cost something, and yet with a gradient.

    Its perplexity is that of p̃_θ renormalised over the V tokens, under uniform masking; the paper's own bound is
    reported as `d3pm`, for a schedule that goes from nothing masked to everything.
    """

    name = "d3pm"
    summary = "T absorbing steps, the mask among the predictions: the variational bound and a cross-entropy"
    refs = ("arXiv:2107.03006",)
    uses: ClassVar[frozenset[str]] = frozenset({"backbone", "noise"})
    exact: ClassVar[bool] = False
    steps: int = param(1000, help="T, steps of the process", ge=1)
    weight: Literal["nelbo", "simple"] = param(
        "nelbo", help="T(KL + λ·CE), an estimate of the bound and λ; or KL/β + λ·CE, every masked token alike"
    )
    auxiliary: float = param(
        0.001, help="λ, weight of the cross-entropy beside the KL of a step; 0.001 on CIFAR-10", ge=0
    )

    def build(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from atat_zoo.objectives.d3pm_module import D3PMModule

        return D3PMModule(context, parts, batch_size, steps=self.steps, weight=self.weight, auxiliary=self.auxiliary)
