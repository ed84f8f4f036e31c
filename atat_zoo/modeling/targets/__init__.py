"""Targets: the training targets of the importance estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.registry import Context, component, network_of, param

if TYPE_CHECKING:
    from torch import Tensor


class Target(Protocol):
    """A component of the kind target: a callable on tensors.

    One with a state has a `network` with this call, which implements `StatefulComponent`.
    """

    name: str

    def __call__(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target, float32 [B, L] in [0, 1], and where it counts, bool [B, L].

        The loss is the cross-entropy in nats, detached, float32 [B, L], zero where nothing is masked.
        """


@component
class DifficultyTarget:
    """The cross-entropy at masked tokens, on a scale from 0 to 1.

    `rank`: its rank among the row's n masked tokens, (rank + ½)/n with rank 0 the easiest and ties sharing their mean
    rank. A row has one rate, so only tokens masked at the same rate are compared. Rows with fewer than two masked
    tokens have no order and do not count.

    `running`: σ((CE − μ(r))/s(r)), with mean and standard deviation followed over the training per mask rate, since
    cross-entropy grows with the rate. It compares tokens of different rows. Nothing counts before the first update.

    Targets exist at masked tokens only: elsewhere the denoiser predicts nothing.
    """

    name = "difficulty"
    summary = "difficulty: the denoiser's cross-entropy at masked tokens, as a rank or on a running scale"
    network = "atat_zoo.modeling.targets.target_networks:RunningDifficulty"
    refs = ("arXiv:1905.03677",)

    scale: Literal["rank", "running"] = param(
        "rank", help="rank: within the sequence; running: by running mean and deviation at each mask rate"
    )
    decay: float = param(0.99, help="with running: decay per step", ge=0, lt=1)
    bins: int = param(10, help="with running: number of mask-rate bins, each with its own scale", ge=1, le=1000)

    def build(self, context: Context) -> Callable[[NoisedBatch, Tensor], tuple[Tensor, Tensor]]:
        """Return itself for `rank`, a module with the running moments for `running`."""
        made: Callable[[NoisedBatch, Tensor], tuple[Tensor, Tensor]]
        made = self if self.scale == "rank" else network_of(self, context)
        return made

    def __call__(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ranks, float32 [B, L] in (0, 1), and where they count, bool [B, L]."""
        if self.scale != "rank":
            raise TypeError("the running scale has a state: call build(context) and use what it returns")
        from atat_zoo.modeling.targets.target_networks import rank_within

        return rank_within(loss, noised.masked)


@component
class WasMaskedTarget:
    """1 where the token was masked and 0 where it was not, over all maskable tokens.

    It has no information about difficulty. An estimator that minimises the squared error to it converges to
    E_r[p_i(r)], the average masking that the estimator itself caused: ½ everywhere with uniform masking and rates
    uniform in [0, 1]. It exists for comparison, and because the ATAT report names it.
    """

    name = "was_masked"
    summary = "whether the token was masked; converges to the estimator's own masking, E_r[p_i(r)] (for comparison)"

    def __call__(self, noised: NoisedBatch, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mask, float32 [B, L], and the maskable tokens, bool [B, L]; the loss is not read."""
        return noised.masked.float(), noised.maskable
