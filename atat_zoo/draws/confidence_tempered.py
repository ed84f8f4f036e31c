"""The draw `confidence_tempered`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class ConfidenceTempered:
    """An exact draw whose temperature follows the running confidence of the row.

    The running confidence c is the mean over the last `window` evaluations of the mean of max p_θ over what is
    masked; the temperature is unsure + c · (sure − unsure). With both at 1 this is `categorical`.
    """

    name = "confidence_tempered"
    summary = "an exact draw whose temperature follows the mean confidence of the last evaluations"
    refs = ("ATAT",)
    needs = frozenset({"history"})

    sure: float = param(0.8, help="temperature at a running confidence of 1", gt=0)
    unsure: float = param(1.0, help="temperature at a running confidence of 0", gt=0)
    window: int = param(5, help="evaluations that the running confidence looks back", ge=1)

    def __call__(self, log_probs: Tensor, keys: Tensor, step: Step, rows: Tensor) -> Tensor:
        """Return int64 [M]."""
        from atat_zoo.diffusion.categorical import draw

        assert step.history is not None
        running = step.history[:, -self.window :].nanmean(1)
        temperature = self.unsure + running * (self.sure - self.unsure)
        return draw(log_probs, keys, temperature[rows])
