"""The algorithm itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer import Algorithm, Event

if TYPE_CHECKING:
    from composer import Logger, State


class Centring(Algorithm):
    """Runs between the backward pass and the optimizer step."""

    def match(self, event: Event, state: State) -> bool:
        """Return whether the gradients of a step are there."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Take the mean off the gradient of each row of a matrix."""
        for parameter in state.model.parameters():
            if parameter.grad is not None and parameter.ndim >= 2:
                parameter.grad -= parameter.grad.mean(dim=tuple(range(1, parameter.ndim)), keepdim=True)
