"""The expected number of masks, almost exactly, in every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


@component
class Systematic:
    """Systematic sampling: marginals exactly p, and the count is the floor or ceiling of Σp.

    The row is shuffled, its p laid end to end on a line, and a comb with teeth at
    u, u + 1, u + 2, … put on it with one uniform u: a token is masked where a tooth
    falls into its piece. Pieces are at most 1 long, so none gets two.

    Tokens are not independent and masks of two rates are not nested: for training
    only, never for a bound.
    """

    name = "systematic"
    summary = "a fixed number of masks a row up to rounding, the same marginals; for training only"
    refs = ("doi:10.1214/aoms/1177729988",)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return which tokens are masked, bool [B, L], for p float32 [B, L] and keys int64 [B]."""
        import torch

        from atat_zoo.diffusion.randomness import fold, to_unit, uniform
        from atat_zoo.drawings.comb import comb

        # The first key orders the row and the second places the comb.
        order = uniform(fold(keys, 0), p.shape[-1], torch.float64).argsort(dim=-1, stable=True)
        start = to_unit(fold(keys, 1), torch.float64)
        chosen = comb(p.gather(-1, order), start)
        return torch.zeros_like(chosen).scatter(-1, order, chosen)
