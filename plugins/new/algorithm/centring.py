"""The Composer algorithm that changes the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer import Algorithm, Event

if TYPE_CHECKING:
    from composer import Logger, State


class Centring(Algorithm):
    """Composer algorithm that centres gradients between the backward pass and the optimizer step."""

    def match(self, event: Event, state: State) -> bool:
        """Return whether the event is the one between the backward pass and the optimizer step."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Subtract, in place, the mean of each row from the gradients of all weight matrices."""
        for parameter in state.model.parameters():
            if parameter.grad is not None and parameter.ndim >= 2:
                parameter.grad -= parameter.grad.mean(dim=tuple(range(1, parameter.ndim)), keepdim=True)
