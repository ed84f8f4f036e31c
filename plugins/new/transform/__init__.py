"""A transform that drops tokens from training sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.data.sample_order import uniforms
from atat_zoo.data.transforms import Transform
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atat_zoo.registry import Context

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderTransform(Transform):
    """Drops each token with probability `share`, and rejects a sequence that keeps fewer than `least` tokens."""

    name = "placeholder"
    summary = "drops random tokens"
    refs = ()

    share: float = param(0.1, help="probability of dropping a token", gt=0, lt=1)
    least: int = param(4, help="minimum number of tokens to keep", ge=1)

    def apply(self, tokens: NDArray[np.int64], key: int, context: Context) -> NDArray[Any] | None:
        """Return the kept tokens, or None if they are fewer than `least`; `key` determines which tokens are dropped."""
        left = tokens[uniforms(len(tokens), key) >= self.share]
        return left if len(left) >= self.least else None


@hookimpl
def atat_zoo_transform() -> list[type]:
    """Return the transforms in this package."""
    return [PlaceholderTransform]
