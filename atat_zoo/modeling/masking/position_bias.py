"""Position biases: values that position masking adds to importance, to mask some positions more often."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from typing_extensions import override

from atat_zoo.registry import Context, component, component_base, network_of, param

if TYPE_CHECKING:
    from torch import Tensor, nn


class PositionBiasModule(Protocol):
    """The `nn.Module` that `build` returns; a learned bias also implements `StatefulComponent`."""

    def values(self, length: int) -> Tensor:
        """Return the bias of each position, float32 [length] in [0, 1]."""


class PositionBias(Protocol):
    """A component of kind `position_bias`."""

    name: str
    network: ClassVar[str]

    def build(self, context: Context) -> nn.Module:
        """Return a `PositionBiasModule`; `values` of a learned bias raises a `ValueError` beyond `context.length`."""
        return network_of(self, context)


@component_base
class _FixedBias(PositionBias):
    """A bias that depends only on the position."""

    @abstractmethod
    def bias(self, positions: Tensor) -> Tensor:
        """Return the bias of the positions 0 … L−1, float64 [L]."""

    network = "atat_zoo.modeling.masking.masking_networks:FixedBiasModule"

    @override
    def build(self, context: Context) -> nn.Module:
        return network_of(self, context, self.bias)


@component
class FlatBias(_FixedBias):
    """No bias: 0 at every position."""

    name = "flat"
    summary = "fixed: 0 at every position"

    def bias(self, positions: Tensor) -> Tensor:
        """Return 0 for every position."""
        return positions.double() * 0


@component
class LeftToRightBias(_FixedBias):
    """bias_i = i/(L−1): 0 at the first position, 1 at the last.

    A token with a larger bias stays masked longer, so tokens tend to be unmasked from left to right, and more strictly
    so with a larger weight.
    """

    name = "left_to_right"
    summary = "fixed: increases linearly from 0 to 1, so that tokens tend to be unmasked from left to right"

    def bias(self, positions: Tensor) -> Tensor:
        """Return i/(L−1), or 0 for a single token."""
        return positions.double() / max(1, len(positions) - 1)


@component
class UShapeBias(_FixedBias):
    """bias_i = |2i/(L−1) − 1|^e: 1 at both ends of the sequence, 0 in the middle.

    Tokens at the ends have context on one side only, so they are harder to predict.
    """

    name = "u_shape"
    summary = "fixed: 1 at both ends of the sequence, 0 in the middle"

    exponent: float = param(2.0, help="e, exponent; larger values flatten the middle", gt=0, le=100)

    def bias(self, positions: Tensor) -> Tensor:
        """Return |2i/(L−1) − 1|^e, or 1 for a single token."""
        # Integers first, so that mirrored positions get exactly the same number.
        last = len(positions) - 1
        distance = (2 * positions - last).abs().double()
        return (distance / last if last > 0 else distance + 1).pow(self.exponent)


@component
class RunningBias(PositionBias):
    """The running mean of the masked cross-entropy at each position, scaled to [0, 1].

    The easiest position gets 0 and the hardest 1, unless the losses differ by less than `floor` times their mean: then
    differences are divided by that product, so noise is not amplified. Positions that were never masked are assigned
    the overall mean. Before the first update, every position has 0.
    """

    name = "running"
    summary = "learned: the running mean of the loss at each position"
    network = "atat_zoo.modeling.masking.masking_networks:RunningBiasModule"

    decay: float = param(0.99, help="decay of the running mean per step", ge=0, lt=1)
    floor: float = param(
        0.1, help="smallest range of the losses, relative to their mean, that is scaled to [0, 1]", gt=0, le=10
    )


@component
class GradientBias(PositionBias):
    """σ(θ) for one parameter θ per position, trained by gradient ascent on the masked loss.

    No gradient passes through the drawing of a mask, but the expected loss has one. With masking probabilities p from a
    softmax of b/T, for a bias b, the expected loss Σ p_i ℓ_i, where ℓ_i is the loss at position i if masked and ℓ̄ the
    mean, has the gradient ∂/∂b_i = p_i(ℓ_i − ℓ̄)/T. θ follows it at equal p, with ℓ_i − ℓ̄ in units of ℓ̄:

        θ_i ← θ_i + η σ'(θ_i) (ℓ_i − ℓ̄)/ℓ̄

    The gradient ignores that the losses depend on the masks. Before the first update, every position has 1/2.
    """

    name = "gradient"
    summary = "learned: gradient ascent on the masked loss of each position"
    network = "atat_zoo.modeling.masking.masking_networks:GradientBiasModule"
    refs = ("ATAT",)

    learning_rate: float = param(0.1, help="η, learning rate", gt=0, le=100)
