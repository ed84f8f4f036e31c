"""Orders: which masked position comes first.

Any that is fixed before the draw reproduces, one token at a time, the joint distribution of an exact denoiser; one that
depends on the drawn tokens (MaskGIT as published) does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from typing_extensions import override

from atat_zoo.generation.samplers import SamplerPart
from atat_zoo.registry import component, component_base, param, part
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from atat_zoo.diffusion.steps import Step
    from atat_zoo.experiment import Experiment
    from atat_zoo.modeling.uncertainty import Uncertainty


# The first turn of a text: always 0, or one that is drawn.
Offset: TypeAlias = Literal["none", "random"]


class Order(SamplerPart, Protocol):
    """A component of the kind order.

    It may need "log_probs", "importance", "order_weights" or "history"; or "drawn", which makes it an order after the
    draw. If it needs nothing, the network is evaluated only at the chosen positions.
    """

    def __call__(self, step: Step) -> Tensor:
        """Return a score per open position, float [A, L]: the highest comes first, of equal scores the leftmost."""
        ...


@component
class RandomOrder(Order):
    """A uniformly random order, as in the reverse process of uniform masking (Sahoo et al., arXiv:2406.07524)."""

    name = "random"
    summary = "a uniformly random order, as in the reverse process of uniform masking"
    refs = ("arXiv:2406.07524",)

    def __call__(self, step: Step) -> Tensor:
        """Return uniforms, float64 [A, L]."""
        return step.uniform("order")


@component
class LeftToRightOrder(Order):
    """The leftmost masked position first, as an autoregressive model writes."""

    name = "left_to_right"
    summary = "the leftmost masked position first"
    deterministic = True

    def __call__(self, step: Step) -> Tensor:
        """Return minus the position, float64 [A, L]."""
        import torch

        length = step.open.shape[1]
        return torch.arange(0, -length, -1, device=step.open.device, dtype=torch.float64).expand(step.open.shape)


@component
class UncertaintyOrder(Order):
    """By an uncertainty metric of the prediction, optionally times the token's importance.

    Most certain first with `margin` or `confidence` (Chang et al., arXiv:2202.04200; Kim et al., arXiv:2502.06768)
    lowers diversity, so report the unigram entropy; there is no published evidence for most uncertain first. The
    importance is that of a draft, z with the most probable token at every mask, or, by an estimator that reads z, of
    the masked token. Without an estimator the factor is 1.
    """

    name = "uncertainty"
    summary = "by an uncertainty metric, most certain or most uncertain first, optionally × importance"
    refs = ("arXiv:2202.04200", "arXiv:2502.06768", "ATAT")
    deterministic = True

    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")
    first: Literal["most_certain", "most_uncertain"] = param(
        "most_certain", help="which comes first: the lowest or the highest score"
    )
    importance: bool = param(False, help="multiply the uncertainty by the importance of the token")

    @property
    @override
    def needs(self) -> frozenset[str]:
        return frozenset({"log_probs", "importance"}) if self.importance else frozenset({"log_probs"})

    def __call__(self, step: Step) -> Tensor:
        """Return the uncertainty, times the importance, with its sign, float [A, L]."""
        score = step.measure(self.uncertainty)
        if self.importance and step.importance is not None:
            score = score * step.importance
        return score if self.first == "most_uncertain" else -score


@component
class ImportanceOrder(Order):
    """By the importance of the masked tokens: the scores by which the masking `reveal` trains the same model.

    With an estimator that reads z it is known before the network is evaluated, which then predicts the chosen positions
    alone. Any other estimator weighs a draft. Without one all positions are alike, and the leftmost comes first.
    """

    name = "importance"
    summary = "by how hard the estimator says that the masked token is, easiest or hardest first"
    refs = ("ATAT",)
    deterministic = True
    needs = frozenset({"importance"})

    first: Literal["easy", "hard"] = param("easy", help="which comes first: the lowest or the highest score")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Refuse a model that estimates no importance, or none that it has learned."""
        if "estimator" not in experiment.parts["objective"].uses or not experiment.parts["estimator"].learns:
            yield Problem(
                "sampler",
                "the order importance follows an estimator that was trained with the model, and this experiment has "
                'none; set estimator.use = "transformer" and its reads to "z", or choose another sampler',
            )

    def __call__(self, step: Step) -> Tensor:
        """Return the importance with its sign, float [A, L]."""
        if step.importance is None:
            return step.open.float().zero_()
        return step.importance if self.first == "hard" else -step.importance


@component
class LearnedOrder(Order):
    """The model's own: masked position i comes next with probability ŵ_i / Ŵ, learned by the objective `adaptive`.

    Gumbel noise on log ŵ draws the order. One position at a time, this is exactly the reverse process of the adaptive
    bound; several at once are drawn without replacement (Plackett–Luce). ŵ is known before the token is drawn.
    """

    name = "learned"
    summary = "by the reverse weights of the model's own process, which the objective adaptive learns"
    refs = ("arXiv:2602.02112", "arXiv:1903.06059")
    needs = frozenset({"order_weights"})

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Refuse an objective that learns no order."""
        objective = experiment.parts["objective"]
        if not objective.learns_order:
            yield Problem(
                "sampler",
                f"the order learned needs reverse weights, and objective {objective.name!r} learns none; set "
                'objective.use = "adaptive", or choose another sampler',
            )

    def __call__(self, step: Step) -> Tensor:
        """Return log ŵ plus Gumbel noise, float64 [A, L]."""
        if step.order_weights is None:
            raise RuntimeError("the order learned was called without the model's order weights")
        return step.spread(step.order_weights.double()) - (-step.uniform("order").log()).log()


@component
class BlockwiseOrder(Order):
    """Blocks of positions to fill from left to right, and within a block another order.

    Tokens per step that takes more than is left of a block continues into the next one, and a rule about single
    positions ignores blocks. The sampler `semi_autoregressive` finishes each block before it begins the next.
    """

    name = "blockwise"
    summary = "blocks from left to right, by another order within each"
    refs = ("arXiv:2210.17432", "arXiv:2502.09992")

    block_size: int = param(32, help="positions in a block", ge=1)
    inner: Order = part("order", "random", help="the order within a block")

    @property
    @override
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    @property
    @override
    def deterministic(self) -> bool:
        return self.inner.deterministic

    @override
    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        return self.inner.check(experiment)

    def __call__(self, step: Step) -> Tensor:
        """Return scores that sort by block, and within a block by the rank in the inner order, float64 [A, L]."""
        import torch

        length = step.open.shape[1]
        # Ranks, because a score of any size must not reach into another block.
        ranking = self.inner(step).masked_fill(~step.open, -math.inf).sort(dim=1, descending=True, stable=True).indices
        numbers = torch.arange(length, device=ranking.device, dtype=torch.float64).expand(ranking.shape)
        rank = torch.zeros_like(numbers).scatter(1, ranking, numbers)
        block = (step.free.cumsum(1) - 1).clamp(min=0) // self.block_size
        return -(block * length + rank)


@component
class DilatedOrder(Order):
    """From coarse to fine: positions far apart first, as neighbours depend on one another most.

    Of n positions to fill, group t has those whose number is a multiple of ⌊n/a^t⌋ and that are in no earlier group.
    The groups come in turn, in random order within each. As published (Luxembourg et al., arXiv:2506.19037), each step
    fills one of ⌈log_a n⌉ groups; here the tokens per step decides.
    """

    name = "dilated"
    summary = "positions far apart first, then those between them"
    refs = ("arXiv:2506.19037",)

    base: int = param(2, help="a, the factor by which the distance shrinks from group to group", ge=2)

    def __call__(self, step: Step) -> Tensor:
        """Return minus the group, plus a uniform, float64 [A, L]."""
        import torch

        number = (step.free.cumsum(1) - 1).clamp(min=0)
        n = step.total.to(number.device, non_blocking=True).unsqueeze(1)
        group, placed, parts = torch.zeros_like(number), torch.zeros_like(step.open), 1
        while parts < number.shape[1]:
            parts *= self.base
            placed = placed | (number % (n // parts).clamp(min=1) == 0)
            group += ~placed
        return step.uniform("order") - group


@component_base
class Strided:
    """What the order, the tokens per step and the sampler `strided` share: position number j has turn (j + o) mod s."""

    stride: int = param(16, help="s, the number of turns", ge=1)
    offset: Offset = param("none", help="random: each text begins with a turn of its own")

    @property
    def deterministic(self) -> bool:
        """Whether o is the same for all texts."""
        return self.offset == "none"

    def offsets(self, seeds: Tensor) -> Tensor:
        """Return o, 0 or drawn by the seed of each row, int64 [A], below the stride; on the device of the seeds."""
        import torch

        from atat_zoo.diffusion.randomness import fold, stream, uniform

        if self.offset == "none":
            return torch.zeros_like(seeds)
        drawn = uniform(fold(fold(seeds, self.stride), stream(0, "order")), 1, torch.float64)
        return (drawn * self.stride).floor().long().squeeze(1)


@component
class StridedOrder(Strided, Order):
    """By turn: of the positions to fill, number j has turn (j + o) mod s, and turn 0 comes first.

    Positions of a turn are s apart, so little is lost by drawing them at once: tokens_per_step `strided` does in each
    step.
    """

    name = "strided"
    summary = "positions to fill by their number mod s, so that one step fills positions that are s apart"

    def __call__(self, step: Step) -> Tensor:
        """Return minus the turn, float64 [A, L]."""
        number = step.free.cumsum(1) - 1
        return -((number + self.offsets(step.seeds)[:, None]) % self.stride).double()


@component
class DrawnProbabilityOrder(Order):
    """After the draw, by the probability of the drawn token, highest first, as MaskGIT was published.

    Not exact, even one position at a time with an exact denoiser, because it lowers the temperature. Gumbel noise on
    the log-probabilities tempers this; its scale, the choice temperature, falls linearly to zero in the last step
    (Chang et al., arXiv:2202.04200).
    """

    name = "drawn_probability"
    summary = "after the draw, by the probability of the drawn token, as in MaskGIT"
    refs = ("arXiv:2202.04200",)
    needs = frozenset({"drawn"})

    choice_temperature: float = param(
        0.0, help="of the Gumbel noise on the log-probability, which falls linearly with the steps; 0 for none", ge=0
    )

    def __call__(self, step: Step) -> Tensor:
        """Return log p_θ of the drawn tokens plus noise, float64 [A, L]."""
        if step.drawn_log_probs is None:
            raise RuntimeError("the order drawn_probability was called without the tokens that were drawn")
        score = step.spread(step.drawn_log_probs.double())
        if self.choice_temperature == 0:
            return score
        left = (1 - (step.number + 1) / step.most.double()).clamp(min=0).to(score.device, non_blocking=True)
        u = step.uniform("order").clamp(min=2.0**-54)  # never 0, where the Gumbel noise would be −∞
        return score - self.choice_temperature * left.unsqueeze(1) * (-u.log()).log()
