"""More where the denoiser finds it hard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from atat_zoo.biases.running_module import RunningModule
    from atat_zoo.registry import Context


@component
class Running:
    """The running mean of the masked cross-entropy at each position, brought to [0, 1].

    The easiest position has 0 and the hardest 1, unless all differ by less than
    `floor` of the mean loss: then the spread is divided by that floor, so that
    noise between equals does not become a preference. Positions that were never
    masked take the mean of all. Until the first update every position has 0.
    """

    name = "running"
    summary = "learned: the running mean of the loss at each position"
    refs = ()

    decay: float = param(0.99, help="how much of the past a step keeps", ge=0, lt=1)
    floor: float = param(0.1, help="smallest spread, as a share of the mean loss, that counts in full", gt=0, le=10)

    def build(self, context: Context) -> RunningModule:
        """Return a module for positions 0 … `context.length` − 1 that answers to `Adaptive`."""
        from atat_zoo.biases.running_module import RunningModule

        return RunningModule(context.length, self.decay, self.floor)
