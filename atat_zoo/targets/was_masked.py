"""Whether a token was masked, as the source documents have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.records import Masked


@component
class WasMasked:
    """1 where the token was masked and 0 where it was not, over all maskable tokens.

    It says nothing about difficulty. An estimator that minimises the squared error
    to it converges to E_r[p_i(r)], the average masking which the estimator itself
    caused: ½ everywhere with uniform masking and rates uniform in [0, 1]. It is
    here because the source documents name it, and to compare with.
    """

    name = "was_masked"
    summary = "the mask itself: its optimum is E_r[p_i(r)], the masking the estimator itself caused"
    refs = ()

    def __call__(self, masked: Masked, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mask, float32 [B, L], and the maskable tokens, bool [B, L]; the loss is not looked at."""
        del loss
        return masked.masked.float(), masked.maskable
