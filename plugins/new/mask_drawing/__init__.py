"""A mask drawing that masks spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderDrawing:
    """Adjacent tokens share a uniform number u, and a token is masked where u < p: spans, with marginals p."""

    name = "placeholder"
    summary = "masks spans of adjacent tokens together, with the same marginals"
    refs = ("arXiv:1907.10529",)

    size: int = param(3, help="span length in tokens", ge=1)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return which tokens are masked, bool [B, L], for p float32 [B, L] and keys int64 [B]."""
        from atat_zoo.diffusion.randomness import uniform

        length = p.shape[-1]
        spans = uniform(keys, -(-length // self.size))
        return spans.repeat_interleave(self.size, dim=-1)[:, :length] < p


@hookimpl
def atat_zoo_mask_drawing() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderDrawing]
