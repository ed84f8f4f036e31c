"""An objective that limits the influence of tokens with a large loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from atat_zoo.registry import Context

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderObjective:
    """Trains with the loss s·log(1 + CE/s) of each masked token with cross-entropy CE; reports the bound of `mdlm`."""

    name = "placeholder"
    summary = "cross-entropy, damped for tokens with a large loss"
    refs = ("arXiv:1701.03077",)
    uses = frozenset({"backbone", "noise"})
    exact = False
    shifted = False

    scale: float = param(4.0, help="loss s in nats at which a token's gradient is halved", gt=0)

    def build(self, context: Context, parts: Mapping[str, object], batch_size: int) -> nn.Module:
        """Return the `nn.Module`, which implements `atat_zoo.modeling.objectives.ObjectiveModule`."""
        from .module import Damped

        return Damped(context, parts, batch_size, self.scale)


@hookimpl
def atat_zoo_objective() -> list[type]:
    """Return the objectives in this package."""
    return [PlaceholderObjective]
