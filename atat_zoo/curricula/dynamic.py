"""Easy tokens first, then all alike, then hard ones, at the pace of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from atat_zoo.curricula.dynamic_module import DynamicModule
    from atat_zoo.registry import Context


@component
class Dynamic:
    """The stages of `three_stage`, entered and left on the trend of the loss.

    Two running means of the masked cross-entropy are kept in a stage, a fast and a
    slow one. Their relative difference, gain = (slow − fast)/slow, says where the
    loss is going:

    - gain ≥ `threshold`: it falls, the stage has work left, wait;
    - gain < −`tolerance`: it rises, the stage is too hard, go back one;
    - otherwise it is flat: after `patience` such steps in a row, go on to the next.

    A new stage starts with empty means. The loss followed is the unweighted one, so
    a change of weights is not taken for a change of the model.
    """

    name = "dynamic"
    summary = "the stages of three_stage, moved on, held or moved back by the trend of the loss"
    refs = ("doi:10.1145/1553374.1553380",)

    sharpness: float = param(2.0, help="s: the weight of I = 1 over that of I = 0 is exp(s)", ge=0, le=50)
    threshold: float = param(0.01, help="smallest relative gain that is an improvement", ge=0, le=1)
    tolerance: float = param(0.05, help="relative rise of the loss that sends it back a stage", ge=0, le=1)
    patience: int = param(200, help="flat steps in a row before the next stage", ge=1)
    fast: float = param(20.0, help="steps that the fast mean remembers", ge=1)
    slow: float = param(200.0, help="steps that the slow mean remembers", ge=1)

    def __attrs_post_init__(self) -> None:
        """Refuse a fast mean that is not faster."""
        if self.fast >= self.slow:
            raise ValueError(f"fast must be less than slow, not {self.fast} and {self.slow}")

    def build(self, context: Context) -> DynamicModule:
        """Return a module whose buffers hold the stage and the means; it answers to `Adaptive`."""
        from atat_zoo.curricula.dynamic_module import DynamicModule

        del context
        return DynamicModule(self)
