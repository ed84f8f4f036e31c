"""The algorithm itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer import Algorithm, Event

if TYPE_CHECKING:
    from composer import Logger, State


class Centring(Algorithm):
    """Composer algorithm that runs between the backward pass and the optimizer step."""

    def match(self, event: Event, state: State) -> bool:
        """Return whether the gradients of a step have been computed."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Subtract the mean from the gradient of each row of a weight matrix."""
        for parameter in state.model.parameters():
            if parameter.grad is not None and parameter.ndim >= 2:
                parameter.grad -= parameter.grad.mean(dim=tuple(range(1, parameter.ndim)), keepdim=True)
