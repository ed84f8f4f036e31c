"""The stop `uncertainty`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step
    from atat_zoo.uncertainty import Uncertainty


@component
class UncertaintyStop:
    """When the mean uncertainty of what is masked falls below a threshold, the rest is filled in one draw.

    The draw uses the distributions that were judged, so stopping costs no evaluation.
    """

    name = "uncertainty"
    summary = "fills the rest when the mean uncertainty of what is masked is below a threshold"
    refs = ("ATAT",)
    active = True
    needs = frozenset({"log_probs"})

    threshold: float = param(0.3, help="mean uncertainty below which the rest is filled; 0 never stops", ge=0, le=1)
    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")

    def __call__(self, step: Step) -> Tensor:
        """Return which rows are finished, bool [A]."""
        return step.mean_open(step.measure(self.uncertainty)) < self.threshold
