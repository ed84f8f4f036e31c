"""An estimator of the NELBO that draws masks in antithetic pairs."""

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
    """Draws masks in pairs: the first k of n tokens in a random order, then the last n + 1 − k tokens of that order.

    k is uniform on 1 … n. As in the bound `exact_k`, a mask of m tokens has weight n/m; a pair masks every token.
    """

    name = "placeholder"
    summary = "exactly k masked tokens, in antithetic pairs"
    refs = ()
    quantity = "nelbo"
    follows_noise: ClassVar[bool] = False

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        """Yield `draws` weighted masks, determined by `maskable`, bool [B, L], and a key per sequence, int64 [B]."""
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
    """Return the estimators of the bound in this package."""
    return [PlaceholderBound]
