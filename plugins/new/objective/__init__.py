"""An objective that limits the influence of tokens with a large loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from atat_zoo.registry import Context

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderObjective:
    """Replaces the cross-entropy of each masked token by s·log(1 + CE/s); the bound is that of `mdlm`."""

    name = "placeholder"
    summary = "cross-entropy, damped where it is large"
    refs = ("arXiv:1701.03077",)
    uses = frozenset({"backbone", "noise"})
    exact = False
    shifted = False

    scale: float = param(4.0, help="s: loss in nats at which a token has half its gradient", gt=0)

    def build(self, context: Context, parts: Mapping[str, object], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from .module import Damped

        return Damped(context, parts, batch_size, self.scale)


@hookimpl
def atat_zoo_objective() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderObjective]
