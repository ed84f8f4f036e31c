"""Targets: the training targets of the importance estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.registry import Context, component, network_of, param

if TYPE_CHECKING:
    from torch import Tensor


class Target(Protocol):
    """A component of kind `target`: a callable on tensors.

    A target with a state has a `network` that has the same `__call__` and implements `StatefulComponent`.
    """

    name: str

    def __call__(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target, float32 [B, L] in [0, 1], and where it is valid, bool [B, L].

        The loss is the detached cross-entropy in nats, float32 [B, L], zero at tokens that are not masked.
        """


@component
class DifficultyTarget:
    """The cross-entropy at masked tokens, scaled to [0, 1].

    `rank`: the rank of the cross-entropy among the row's n masked tokens, (rank + ½)/n, where rank 0 is the easiest
    token and ties share their mean rank. Only tokens at one mask rate are compared. Rows with fewer than two masked
    tokens are ignored.

    `running`: σ((CE − μ(r))/s(r)), with the running mean μ and standard deviation s at mask rates near r, since CE
    grows with the rate. Tokens of all rows are comparable. All tokens are ignored before the first update.

    Only masked tokens have a target, because the denoiser predicts only these.
    """

    name = "difficulty"
    summary = "difficulty: the denoiser's cross-entropy at masked tokens, ranked or standardised by running moments"
    network = "atat_zoo.modeling.targets.target_networks:RunningDifficulty"
    refs = ("arXiv:1905.03677",)

    scale: Literal["rank", "running"] = param(
        "rank", help="rank: rank within the sequence; running: standardised by running moments at similar mask rates"
    )
    decay: float = param(0.99, help="for the running scale: decay of the moments per step", ge=0, lt=1)
    bins: int = param(10, help="for the running scale: number of mask-rate bins with their own moments", ge=1, le=1000)

    def build(self, context: Context) -> Callable[[NoisedBatch, Tensor], tuple[Tensor, Tensor]]:
        """Return the component itself for `rank`, or a module with running moments for `running`."""
        made: Callable[[NoisedBatch, Tensor], tuple[Tensor, Tensor]]
        made = self if self.scale == "rank" else network_of(self, context)
        return made

    def __call__(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ranks, float32 [B, L], and where they are valid, bool [B, L]; only for `scale = "rank"`."""
        if self.scale != "rank":
            raise TypeError("the running scale has a state; call build(context) and use its result")
        from atat_zoo.diffusion.statistics import rank_within

        return rank_within(loss, noised.masked)


@component
class WasMaskedTarget:
    """1 for masked tokens and 0 for all other maskable tokens.

    This target carries no information about difficulty: an estimator that minimises the squared error converges to
    E_r[p_i(r)], the average masking probability of the token, which is ½ for uniform masking and uniform rates. It is
    provided for comparison, because the ATAT report names it.
    """

    name = "was_masked"
    summary = "whether the token was masked (for comparison); an estimator learns only its probability, E_r[p_i(r)]"

    def __call__(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mask, float32 [B, L], and the maskable tokens, bool [B, L]."""
        return noised.masked.float(), noised.maskable
