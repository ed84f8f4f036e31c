"""Algorithms: changes to the training loop. `train.algorithms` is a list of them.

Of Composer's algorithms only clipping by value is not covered by `[train]`; docs/how-to/composer.md lists the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from composer import Algorithm as ComposerAlgorithm


class Algorithm(Protocol):
    """The interface of algorithm components; `package` is as in `Optimizer`."""

    def build(self) -> ComposerAlgorithm:
        """Return Composer's algorithm.

        It runs after `train.max_grad_norm`, and may depend only on the state of the step.
        """


@component
class GradientClippingAlgorithm(Algorithm):
    """Gradient clipping by value, as in Composer; adaptive, by weight norm (Brock et al., 2021); or by module.

    `part` clips the gradient norms of the importance estimator and the denoiser separately, so that the estimator does
    not affect the steps of the denoiser. `train.max_grad_norm` is applied before; set it to 0 to use only this.
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
