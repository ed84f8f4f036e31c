"""Algorithms that change the training loop, listed in `train.algorithms`.

Of Composer's algorithms, only clipping by value is not already covered by `[train]`; docs/how-to/composer.md lists the
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from composer import Algorithm as ComposerAlgorithm


class Algorithm(Protocol):
    """The interface of algorithm components; `package` has the same meaning as in `Optimizer`."""

    def build(self) -> ComposerAlgorithm:
        """Return an instance of Composer's `Algorithm`.

        It runs after the clipping of `train.max_grad_norm`, and may depend only on the state of the current step.
        """


@component
class GradientClippingAlgorithm(Algorithm):
    """Gradient clipping by value, as in Composer; relative to the weight norm (Brock et al., 2021); or per module.

    `per_module` clips the gradient norms of the importance estimator and the denoiser separately, so that the estimator
    does not affect the denoiser's updates. `train.max_grad_norm` is applied first; set it to 0 to use only this
    algorithm.
    """

    name = "gradient_clipping"
    summary = "gradient clipping by value, by weight norm (adaptive), or separately for denoiser and estimator"
    refs = ("arXiv:2102.06171",)
    clipping_type: Literal["value", "adaptive", "per_module"] = param(
        "adaptive",
        help="clip each gradient entry (value), the gradient norm of each output unit relative to its weight norm "
        "(adaptive), or the gradient norms of the denoiser and the estimator separately (per_module)",
    )
    clipping_threshold: float = param(
        0.01,
        help="largest absolute gradient entry (value), fraction of the weight norm (adaptive), or gradient norm "
        "(per_module)",
        gt=0,
    )

    @override
    def build(self) -> ComposerAlgorithm:
        if self.clipping_type == "value":
            from composer.algorithms import GradientClipping

            return GradientClipping(clipping_type="value", clipping_threshold=self.clipping_threshold)
        from atat_zoo.training.gradients import AdaptiveClipping, ClippingByPart

        return (AdaptiveClipping if self.clipping_type == "adaptive" else ClippingByPart)(self.clipping_threshold)
