"""Algorithms: changes to the training loop itself. `train.algorithms` is a list of them.

Of Composer's algorithms only clipping by value adds something to `[train]`; docs/how-to/composer.md lists the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from composer import Algorithm as ComposerAlgorithm


class Algorithm(Protocol):
    """The contract of an algorithm's specification; `package` is as in `Optimizer`."""

    def build(self) -> ComposerAlgorithm:
        """Return Composer's algorithm. It runs after `train.max_grad_norm`, and must be a function of the step's
        state.
        """


@component
class GradientClippingAlgorithm(Algorithm):
    """Clips by value, as Composer does; adaptively by the norm of each weight (Brock et al., 2021); or by part.

    `part` clips the gradient norms of the importance estimator and the denoiser separately, so that the estimator does
    not change the steps of the denoiser. `train.max_grad_norm` is applied before; set it to 0 to use only this.
    """

    name = "gradient_clipping"
    summary = "gradient clipping by value, by weight norm (adaptive), or separately for denoiser and estimator"
    refs = ("arXiv:2102.06171",)
    clipping_type: Literal["value", "adaptive", "per_module"] = param(
        "adaptive",
        help="value: every gradient entry; adaptive: the gradient norm of each output unit relative to its weight "
        "norm; part: the gradient norms of denoiser and estimator separately",
    )
    clipping_threshold: float = param(
        0.01, help="threshold: largest absolute entry, fraction of the weight norm, or norm", gt=0
    )

    @override
    def build(self) -> ComposerAlgorithm:
        if self.clipping_type == "value":
            from composer.algorithms import GradientClipping

            return GradientClipping(clipping_type="value", clipping_threshold=self.clipping_threshold)
        from atat_zoo.training.gradients import AdaptiveClipping, ClippingByPart

        return (AdaptiveClipping if self.clipping_type == "adaptive" else ClippingByPart)(self.clipping_threshold)
