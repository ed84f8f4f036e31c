"""Stops: when all remaining masks are filled in one draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atat_zoo.generation.samplers import SamplerPart
from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step
    from atat_zoo.modeling.uncertainty import Uncertainty


class StoppingRule(SamplerPart, Protocol):
    """A component of the kind stopping_rule, called before tokens are drawn.

    It needs "log_probs", "history" or nothing.
    """

    @property
    def active(self) -> bool:
        """Whether it ever stops early; if not, it is not called."""
        return True

    def __call__(self, step: Step) -> Tensor:
        """Return which rows are finished in this step, bool [A]."""
        ...


@component
class StepsStoppingRule(StoppingRule):
    """Never early: the sampler runs until the tokens per step has unmasked everything."""

    name = "steps"
    summary = "runs until the tokens per step has unmasked everything"
    active = False
    deterministic = True

    def __call__(self, step: Step) -> Tensor:
        """Return false for every row, bool [A]."""
        return step.rows < 0


@component
class UncertaintyStoppingRule(StoppingRule):
    """When the mean uncertainty over masked positions is below a threshold, this evaluation's draw fills the rest."""

    name = "uncertainty"
    summary = "fills the rest when the mean uncertainty over masked positions is below a threshold"
    refs = ("ATAT",)
    needs = frozenset({"log_probs"})
    deterministic = True

    threshold: float = param(0.3, help="mean uncertainty below which the rest is filled; 0 never stops", ge=0, le=1)
    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")

    def __call__(self, step: Step) -> Tensor:
        """Return which rows are finished, bool [A]."""
        return step.mean_open(step.measure(self.uncertainty)) < self.threshold


@component
class ConfidenceHistoryStoppingRule(StoppingRule):
    """When the running confidence is above a threshold, the rest is filled in one draw.

    It is the mean, over the last `window` evaluations of the row, of max p_θ at its masks; no stop before there are so
    many.
    """

    name = "confidence_history"
    summary = "fills the rest when the mean confidence of the last evaluations is above a threshold"
    refs = ("ATAT",)
    needs = frozenset({"history"})
    deterministic = True

    window: int = param(5, help="evaluations that the running confidence looks back", ge=1)
    threshold: float = param(0.9, help="running confidence above which the rest is filled; 1 never stops", ge=0, le=1)

    def __call__(self, step: Step) -> Tensor:
        """Return which rows are finished, bool [A]."""
        assert step.history is not None
        if step.history.shape[1] < self.window:
            return step.rows < 0  # none
        # The mean is NaN until the window is full, and NaN is above no threshold.
        return step.history[:, -self.window :].mean(1) > self.threshold
