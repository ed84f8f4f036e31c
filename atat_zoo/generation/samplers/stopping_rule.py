"""Stopping rules, which decide when to fill all remaining masks in one step. Shapes are those of `Step`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.registry import component, component_param, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step
    from atat_zoo.modeling.uncertainty import Uncertainty


class StoppingRule(SamplerComponent, Protocol):
    """A component of the kind `stopping_rule`, called before token sampling.

    It may need "log_probs" or "history".
    """

    @property
    def active(self) -> bool:
        """Whether the rule ever stops early; if not, it is not called."""
        return True

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of the rows that this step finishes, bool [A]."""
        ...


@component
class StepsStoppingRule(StoppingRule):
    """No early stopping: the sampler runs until every position is unmasked."""

    name = "steps"
    summary = "no early stopping"
    active = False
    deterministic = accepts_padding = True

    def __call__(self, step: Step) -> Tensor:
        """Return false for every row, bool [A]."""
        return step.rows < 0


@component
class UncertaintyStoppingRule(StoppingRule):
    """A rule that fills all masks in the current step when their mean uncertainty is below a threshold."""

    name = "uncertainty"
    summary = "fills all masks in one step when the mean uncertainty at the masks is below a threshold"
    refs = ("ATAT",)
    needs = frozenset({"log_probs"})
    deterministic = accepts_padding = True

    threshold: float = param(
        0.3, help="mean uncertainty below which one step fills all masks; 0 never stops early", ge=0, le=1
    )
    uncertainty: Uncertainty = component_param("uncertainty", "entropy", help="uncertainty metric")

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of the finished rows, bool [A]."""
        return step.mean_open(step.measure(self.uncertainty)) < self.threshold


@component
class ConfidenceHistoryStoppingRule(StoppingRule):
    """A rule that fills all masks in the current step when the running confidence is above a threshold.

    The running confidence is the mean over the last `window` decoding steps of max p_θ at the masks of a sequence. The
    rule does not apply before the sequence has had `window` forward passes.
    """

    name = "confidence_history"
    summary = "fills all masks in one step when the mean confidence in the last decoding steps is above a threshold"
    refs = ("ATAT",)
    needs = frozenset({"history"})
    deterministic = accepts_padding = True

    window: int = param(5, help="number of most recent decoding steps over which confidence is averaged", ge=1)
    threshold: float = param(
        0.9, help="running confidence above which one step fills all masks; 1 never stops early", ge=0, le=1
    )

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of the finished rows, bool [A]."""
        assert step.history is not None
        if step.history.shape[1] < self.window:
            return step.rows < 0  # none
        # The mean is NaN until the window is full, and NaN is above no threshold.
        return step.history[:, -self.window :].mean(1) > self.threshold
