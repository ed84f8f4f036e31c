"""A mask drawing that masks spans of adjacent tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderDrawing:
    """Masks spans: the tokens of a span share a uniform random number, and those with a larger p are masked."""

    name = "placeholder"
    summary = "masks spans of adjacent tokens together, with unchanged marginals"
    refs = ("arXiv:1907.10529",)

    size: int = param(3, help="span length in tokens", ge=1)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return a mask, bool [B, L], given probabilities p, float32 [B, L], and keys, int64 [B]."""
        from atat_zoo.diffusion.randomness import uniform

        length = p.shape[-1]
        spans = uniform(keys, -(-length // self.size))
        return spans.repeat_interleave(self.size, dim=-1)[:, :length] < p


@hookimpl
def atat_zoo_mask_drawing() -> list[type]:
    """Return the mask drawings in this package."""
    return [PlaceholderDrawing]
