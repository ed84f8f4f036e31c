"""Clipping of gradients by the norm of each part, for Composer."""

from __future__ import annotations

from typing import Any

from composer.core import Algorithm, Event, State
from torch.nn.utils import clip_grad_norm_


class ClippingByPart(Algorithm):
    """Clips the importance estimator's gradients by their own norm, and all others by theirs."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def match(self, event: Event, state: State) -> bool:
        """Return whether the gradients of a step are complete."""
        return bool(event == Event.AFTER_TRAIN_BATCH)

    def apply(self, event: Event, state: State, logger: Any) -> None:
        """Clip both in place."""
        parts: dict[bool, list[Any]] = {False: [], True: []}
        for name, parameter in state.model.named_parameters():
            parts["estimator" in name.split(".")].append(parameter)
        for parameters in parts.values():
            clip_grad_norm_(parameters, self.threshold)
