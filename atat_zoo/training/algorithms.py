"""Algorithms that change the training loop, listed in `train.algorithms`.

Of Composer's algorithms, only gradient clipping is offered here; docs/how-to/composer.md says why the others are not or
what replaces them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from composer import Algorithm as ComposerAlgorithm


class Algorithm(Protocol):
    """The interface of algorithm components, which may name an optional dependency (`package`, see `Optimizer`)."""

    def build(self) -> ComposerAlgorithm:
        """Return an instance of Composer's `Algorithm`.

        It runs after gradient clipping to `train.max_grad_norm`, and must not depend on earlier steps.
        """


@component
class GradientClippingAlgorithm(Algorithm):
    """Gradient clipping by value (as in Composer), relative to the weight norm (Brock et al., 2021), or per module.

    `per_module` clips the gradient norms of the importance estimator and the denoiser separately, so that a large
    gradient of the estimator does not shrink the denoiser's. `train.max_grad_norm` is applied first; set it to 0 to use
    only this algorithm.
    """

    name = "gradient_clipping"
    summary = "gradient clipping by value, relative to the weight norm, or separately for denoiser and estimator"
    refs = ("arXiv:2102.06171",)
    clipping_type: Literal["value", "adaptive", "per_module"] = param(
        "adaptive",
        help="clip each gradient entry (value), the gradient norm of each output unit relative to its weight norm "
        "(adaptive), or the gradient norms of the denoiser and the estimator separately (per_module)",
    )
    clipping_threshold: float = param(
        0.01,
        help="largest absolute gradient entry (value), gradient norm as a fraction of the weight norm (adaptive), or "
        "gradient norm of each of the two modules (per_module)",
        gt=0,
    )

    @override
    def build(self) -> ComposerAlgorithm:
        if self.clipping_type == "value":
            from composer.algorithms import GradientClipping

            return GradientClipping(clipping_type="value", clipping_threshold=self.clipping_threshold)
        from atat_zoo.training.gradients import AdaptiveClipping, ClippingByPart

        return (AdaptiveClipping if self.clipping_type == "adaptive" else ClippingByPart)(self.clipping_threshold)
