"""Algorithms: changes to the training loop itself. `train.algorithms` is a list of them.

Of Composer's, only its other gradient clipping adds something to `[train]`; docs/composer.md says of each what it did.
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

    `part` is clipping by norm, but the importance estimator's gradients have a norm of their own, so that they do not
    change the steps of the denoiser. `train.max_grad_norm` clips before it; set that to 0 to have this alone.
    """

    name = "gradient_clipping"
    summary = "clips gradients by value, by the norm of each weight, or by those of denoiser and estimator"
    refs = ("arXiv:2102.06171",)
    clipping_type: Literal["value", "adaptive", "per_module"] = param(
        "adaptive",
        help="value: each entry; adaptive: the norm of each output's gradient, relative to its weights'; part: the "
        "norm of all of the denoiser's, and that of all of the estimator's",
    )
    clipping_threshold: float = param(0.01, help="largest absolute entry, share of the weight's norm, or norm", gt=0)

    @override
    def build(self) -> ComposerAlgorithm:
        if self.clipping_type == "value":
            from composer.algorithms import GradientClipping

            return GradientClipping(clipping_type="value", clipping_threshold=self.clipping_threshold)
        from atat_zoo.training.gradients import AdaptiveClipping, ClippingByPart

        return (AdaptiveClipping if self.clipping_type == "adaptive" else ClippingByPart)(self.clipping_threshold)
