"""The stop `confidence_history`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class ConfidenceHistory:
    """When the running confidence is above a threshold, the rest is filled in one draw.

    The confidence of an evaluation is the mean of max p_θ over what is masked; the running confidence its mean
    over the last `window` evaluations of the row. There is no stop before the window is full, so one lucky
    evaluation does not end a text.
    """

    name = "confidence_history"
    summary = "fills the rest when the mean confidence of the last evaluations is above a threshold"
    refs = ("ATAT",)
    active = True
    needs = frozenset({"history"})

    window: int = param(5, help="evaluations that the running confidence looks back", ge=1)
    threshold: float = param(0.9, help="running confidence above which the rest is filled; 1 never stops", ge=0, le=1)

    def __call__(self, step: Step) -> Tensor:
        """Return which rows are finished, bool [A]."""
        import torch

        assert step.history is not None
        if step.history.shape[1] < self.window:
            return torch.zeros_like(step.rows, dtype=torch.bool)
        # A mean with a NaN, where there was no evaluation yet, is above nothing.
        return step.history[:, -self.window :].mean(1) > self.threshold
