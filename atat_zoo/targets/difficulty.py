"""How hard the denoiser found each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.records import Masked
    from atat_zoo.registry import Context


@component
class Difficulty:
    """The cross-entropy at masked tokens, on a scale from 0 to 1.

    `rank`: its rank among the row's n masked tokens, (rank + ½)/n with rank 0 the
    easiest and ties sharing their mean rank. A row has one rate, so tokens are
    only compared where equally much was hidden. Rows with fewer than two masked
    tokens have no order and do not count.

    `running`: σ((CE − μ(r))/s(r)), with mean and standard deviation followed over
    the training per mask rate, since cross-entropy grows with the rate. It
    compares tokens of different rows. Nothing counts before the first update.

    Targets exist at masked tokens only: elsewhere the denoiser is not tried.
    """

    name = "difficulty"
    summary = "the denoiser's own cross-entropy at masked tokens, as a rank or on a running scale"
    refs = ("arXiv:1905.03677",)

    scale: Literal["rank", "running"] = param("rank", help="rank within the row, or running mean and deviation by rate")
    decay: float = param(0.99, help="running: how much of the past a step keeps", ge=0, lt=1)
    bins: int = param(10, help="running: intervals of the rate that have their own scale", ge=1, le=1000)

    def build(self, context: Context) -> Callable[[Masked, Tensor], tuple[Tensor, Tensor]]:
        """Return itself for `rank`, a module with the running moments for `running`."""
        del context
        if self.scale == "rank":
            return self
        from atat_zoo.targets.difficulty_module import RunningDifficulty

        return RunningDifficulty(decay=self.decay, bins=self.bins)

    def __call__(self, masked: Masked, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ranks, float32 [B, L] in (0, 1), and where they count, bool [B, L].

        Raises:
            TypeError: for the running scale, whose memory only `build(context)` makes.
        """
        if self.scale != "rank":
            raise TypeError("the running scale has a memory: call build(context) and use what it returns")
        from atat_zoo.targets.ranks import rank_within

        return rank_within(loss, masked.masked)
