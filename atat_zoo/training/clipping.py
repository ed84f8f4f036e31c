"""The gradients of the denoiser and of the importance estimator apart: their norms, and clipping by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import Callback
from composer.core import Algorithm, Event, State
from torch.nn.utils import clip_grad_norm_, get_total_norm

if TYPE_CHECKING:
    from torch import nn


def parameters_by_part(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of the importance estimator, and all others as the denoiser's."""
    parts: dict[str, list[nn.Parameter]] = {"denoiser": [], "estimator": []}
    for name, parameter in model.named_parameters():
        parts["estimator" if "estimator" in name.split(".") else "denoiser"].append(parameter)
    return parts


class ClippingByPart(Algorithm):
    """Clips the importance estimator's gradients by their own norm, and all others by theirs."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def match(self, event: Event, state: State) -> bool:
        """Return whether the gradients of a step are complete."""
        return bool(event == Event.AFTER_TRAIN_BATCH)

    def apply(self, event: Event, state: State, logger: Any) -> None:
        """Clip both in place."""
        for parameters in parameters_by_part(state.model).values():
            clip_grad_norm_(parameters, self.threshold)


class GradientNorms(Callback):
    """Logs the norms of both after a step, every so many steps."""

    def __init__(self, every: int) -> None:
        self.every = every

    def batch_end(self, state: State, logger: Any) -> None:
        """Log a norm for each part that has gradients."""
        if state.timestamp.batch.value % self.every:
            return
        for part, parameters in parameters_by_part(state.model).items():
            if gradients := [parameter.grad for parameter in parameters if parameter.grad is not None]:
                logger.log_metrics({f"gradient_norm/{part}": float(get_total_norm(gradients))})
