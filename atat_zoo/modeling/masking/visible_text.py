"""Masking by what is visible: mask too many tokens at random, then show some of them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from atat_zoo.modeling.masking import VisibleTextMasking
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.modeling.masking import Scores


@component
class RevealMasking(VisibleTextMasking):
    """Of k₀ = min(n, ⌈c·k⌉) tokens masked uniformly, shows the easiest (or hardest) k₀ − k again, as scored from z.

    k is ⌊rn⌋ or ⌈rn⌉ with mean rn, so the mean rate is exact whatever the scores. The tokens that stay masked had no
    part in the choice: the mask depends on visible tokens alone, and the optimal denoiser is the posterior, as for
    uniform masks (missing at random: Rubin, Biometrika 1976). With `first = "easy"` the model learns the contexts that
    the sampler `policy` meets which fills the easiest positions first.
    """

    name = "reveal"
    summary = "too many tokens at random, of which the easiest or hardest are shown again, by what is visible"
    refs = ("doi:10.1093/biomet/63.3.581",)

    excess: float = param(2.0, help="c: tokens hidden at first, for each that stays hidden; 1 is uniform", ge=1, le=1e6)
    first: Literal["easy", "hard"] = param("easy", help="which are shown again: those of the lowest or highest score")

    @property
    def reads_importance(self) -> bool:
        """Whether it asks for scores at all."""
        return self.excess > 1

    @override
    def draw_mask(self, scores: Scores, rate: Tensor, maskable: Tensor, keys: Tensor) -> Tensor:
        import torch

        from atat_zoo.modeling.diffusion.bounds import uniform_order
        from atat_zoo.modeling.diffusion.mask_counts import count_masked
        from atat_zoo.modeling.diffusion.randomness import fold, to_unit

        count = count_masked(rate, maskable, to_unit(fold(keys, 1), torch.float64))
        return self.of_order(scores, uniform_order(maskable, fold(keys, 0)), count, maskable)

    def of_order(self, scores: Scores, order: Tensor, count: Tensor, maskable: Tensor) -> Tensor:
        """Return the mask of `count` tokens, int64 [B], if tokens are masked at first in this order, [B, L].

        The scores are asked for once, and not at all if the excess is 1.
        """
        from atat_zoo.modeling.diffusion.mask_counts import first_masked, lowest

        candidates = first_masked(order, count, self.excess, maskable)
        if self.excess == 1:
            return candidates
        difficulty = scores(candidates)
        return lowest(difficulty if self.first == "hard" else -difficulty, order, count, candidates)
