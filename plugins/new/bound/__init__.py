"""An estimator of the bound that draws masks in antithetic pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.likelihood_bounds import WeightedMask
    from atat_zoo.modeling.noise import Noise

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderBound:
    """Masks the first k of n tokens in a random order with weight n/k, then the last n + 1 − k tokens of that order.

    Each draw has the distribution of `exact_k`, but a pair covers a sequence more evenly than independent draws.
    """

    name = "placeholder"
    summary = "exactly k masked tokens, in antithetic pairs"
    refs = ()
    quantity = "nelbo"
    follows_noise: ClassVar[bool] = False

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        """Yield masks and weights, which are functions of the keys, int64 [B], given maskable, bool [B, L]."""
        import torch

        from atat_zoo.diffusion.likelihood_bounds import WeightedMask, uniform_order
        from atat_zoo.diffusion.randomness import fold, to_unit

        n = maskable.sum(1)
        for draw in range(draws):
            pair = fold(keys, draw // 2)
            order = uniform_order(maskable, fold(pair, 1))
            k = torch.minimum((to_unit(pair, torch.float64) * n).long() + 1, n)
            if draw % 2:
                k, order = n + 1 - k, n[:, None] - 1 - order
            masked = (order < k[:, None]) & maskable
            rate = k / n.clamp(min=1)
            yield WeightedMask(masked=masked, weight=n / k.clamp(min=1), t=noise.time_at(rate))


@hookimpl
def atat_zoo_bound() -> list[type]:
    """Return the components in this package."""
    return [PlaceholderBound]
