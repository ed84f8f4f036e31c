"""The objective of masked diffusion, with importance-weighted masking and a curriculum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from atat_zoo.registry import Context


@component
class MDLMObjective:
    """Cross-entropy at masked tokens under SUBS (Sahoo et al., NeurIPS 2024), weighted token by token.

        loss = Σ_masked c_i · h_i · ω · CE_i / Σ maskable

    ω is the NELBO's weight −α'/(1 − α) or 1, h_i is 1 or r/p_i
    (Horvitz–Thompson), c_i the curriculum's weight. The importance estimator is
    trained beside it, towards the experiment's target. Only uniform masking with
    `nelbo` weights makes this loss an estimate of the bound; none of it is ever
    reported as one: the bound is computed apart, under uniform masking.
    """

    name = "mdlm"
    summary = "masked diffusion: cross-entropy at masked tokens, with importance, curriculum and correction"
    refs = ("arXiv:2406.07524", "ATAT")
    uses: ClassVar[frozenset[str]] = frozenset(
        {"backbone", "noise", "estimator", "masking", "mask_drawing", "curriculum", "target"}
    )
    exact: ClassVar[bool] = False
    weight: Literal["nelbo", "simple"] = param("nelbo", help="ω: −α'/(1 − α), which is 1/t for linear noise, or 1")
    correction: Literal["none", "horvitz_thompson"] = param(
        "none", help="h: 1, or r/p, which gives every token the same marginal weight"
    )
    floor: float = param(0.1, help="ε of the correction: p becomes (1−ε)p + εr, so that r/p ≤ 1/ε", gt=0, le=1)
    importance_loss_weight: float = param(0.1, help="λ, weight of the importance estimator's loss", ge=0)

    def build(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from atat_zoo.objectives.mdlm_module import MDLMModule

        return MDLMModule(
            context,
            parts,
            batch_size,
            weight=self.weight,
            correction=self.correction,
            floor=self.floor,
            importance_loss_weight=self.importance_loss_weight,
        )
