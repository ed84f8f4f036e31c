"""Masks of whole k-mers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


@component
class KmerMaskDrawing:
    """Runs of k tokens share one uniform u: a token is masked where u < p, so a run of equal p is hidden as a whole.

    The runs lie one after another, and where the first begins is drawn, so that each place of a run is as likely.
    Marginals are exactly p, and the masks of a higher rate contain those of a lower one. The text has no part in it, so
    it tilts nothing that is learned (Joshi et al., TACL 2020, hide spans of text).
    """

    name = "kmer"
    summary = "whole k-mers hidden together, the same marginals"
    refs = ("doi:10.1162/tacl_a_00300",)

    k: int = param(6, help="tokens in a run", ge=1, le=1_000_000)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """See `MaskDrawing`."""
        import torch

        from atat_zoo.modeling.diffusion.randomness import fold, to_unit, uniform

        first = (to_unit(fold(keys, 0), torch.float64) * self.k).long()
        run = (torch.arange(p.shape[-1], device=p.device) + first[:, None]) // self.k
        return uniform(fold(keys, 1), (p.shape[-1] - 1) // self.k + 2).gather(-1, run) < p
