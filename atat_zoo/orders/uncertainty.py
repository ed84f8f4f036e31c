"""The order `uncertainty`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step
    from atat_zoo.uncertainty import Uncertainty


@component
class UncertaintyOrder:
    """By an uncertainty metric of the prediction, times the token's importance if that is asked for.

    Most certain first with `margin` or `confidence` is what much of the literature does (Chang et al.,
    arXiv:2202.04200; Kim et al., arXiv:2502.06768), there with the drawn token for some. It is known to lower
    diversity; for most uncertain first there is no published evidence. Report the unigram entropy of what is
    written with either.

    With importance the score is uncertainty × importance, which the estimator reads from a draft: z with the
    most probable token at every mask, since it has learned on text without masks. Without an estimator the
    factor is 1.
    """

    name = "uncertainty"
    summary = "by an uncertainty metric, most certain or most uncertain first, × importance if asked for"
    refs = ("arXiv:2202.04200", "arXiv:2502.06768", "ATAT")

    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")
    first: Literal["most_certain", "most_uncertain"] = param(
        "most_certain", help="which comes first: the lowest or the highest score"
    )
    importance: bool = param(False, help="multiply the uncertainty by the importance of the draft's token")

    @property
    def needs(self) -> frozenset[str]:
        """Return what it reads: the distributions, and importance if it is asked for."""
        return frozenset({"log_probs", "importance"}) if self.importance else frozenset({"log_probs"})

    def __call__(self, step: Step) -> Tensor:
        """Return the score with its sign, float [A, L]."""
        score = step.measure(self.uncertainty)
        if self.importance and step.importance is not None:
            score = score * step.importance
        return score if self.first == "most_uncertain" else -score
