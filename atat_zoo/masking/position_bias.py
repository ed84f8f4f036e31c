"""Position biases: where in a sequence to mask more, added to importance by position masking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.masking.modules import LineModule, RunningModule, UShapeModule
    from atat_zoo.registry import Context


class BiasModule(Protocol):
    """What `build` returns: an `nn.Module`; one that learns implements `StatefulPart`."""

    def values(self, length: int) -> Tensor:
        """Return the bias of each position, float32 [length] in [0, 1]."""
        ...


class Bias(Protocol):
    """A component of the kind bias."""

    name: str

    def build(self, context: Context) -> nn.Module:
        """Return a `BiasModule`."""
        ...


@component
class FlatBias:
    """0 at every position: where a token stands does not matter."""

    name = "flat"
    summary = "fixed: 0 everywhere, no position before another"
    refs = ()

    def build(self, context: Context) -> LineModule:
        """Return a module with `values(length)`, for any length."""
        from atat_zoo.masking.modules import LineModule

        del context
        return LineModule(0.0)


@component
class LeftToRightBias:
    """bias_i = i/(L−1): 0 at the first position, 1 at the last.

    What has more bias is masked longer, so text appears from left to right, the more strictly the stronger it is.
    """

    name = "left_to_right"
    summary = "fixed: rises evenly from 0 to 1, so that text appears from left to right"
    refs = ()

    def build(self, context: Context) -> LineModule:
        """Return a module with `values(length)`, for any length."""
        from atat_zoo.masking.modules import LineModule

        del context
        return LineModule(1.0)


@component
class UShapeBias:
    """bias_i = |2i/(L−1) − 1|^e: 1 at both ends of the sequence, 0 in the middle.

    Tokens at the ends have context on one side only, so they are harder to predict.
    """

    name = "u_shape"
    summary = "fixed: 1 at both ends of the sequence, 0 in the middle"
    refs = ()

    exponent: float = param(2.0, help="e: how flat the middle is", gt=0, le=100)

    def build(self, context: Context) -> UShapeModule:
        """Return a module with `values(length)`, for any length."""
        from atat_zoo.masking.modules import UShapeModule

        del context
        return UShapeModule(self.exponent)


@component
class RunningBias:
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
        """Return a module for positions 0 … `context.length` − 1 that implements `StatefulPart`."""
        from atat_zoo.masking.modules import RunningModule

        return RunningModule(context.length, self.decay, self.floor)
