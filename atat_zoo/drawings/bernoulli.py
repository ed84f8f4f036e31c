"""Every token by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Bernoulli:
    """Token i is masked where u_i < p_i, with its own uniform u_i in [0, 1).

    The uniforms depend on the keys alone, so with one key the masks of a higher
    rate contain those of a lower one. p = 1 masks always and p = 0 never.
    """

    name = "bernoulli"
    summary = "every token by its own uniform number: independent, nested in the rate"
    refs = ("arXiv:2406.07524",)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return which tokens are masked, bool [B, L], for p float32 [B, L] and keys int64 [B]."""
        from atat_zoo.diffusion.randomness import uniform

        return uniform(keys, p.shape[-1]) < p
