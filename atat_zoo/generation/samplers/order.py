"""Decoding orders, which determine the order in which masked positions are filled. Shapes are those of `Step`.

With one token per step, an order that is fixed before the token is sampled reproduces the joint distribution of an
exact denoiser; one that depends on the sampled tokens (MaskGIT as published) does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from typing_extensions import override

from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.registry import component, component_base, component_param, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step
    from atat_zoo.experiment import Experiment
    from atat_zoo.modeling.uncertainty import Uncertainty


# The offset of a sequence's decoding steps: always 0, or random.
Offset: TypeAlias = Literal["none", "random"]


class Order(SamplerComponent, Protocol):
    """A component of the kind `order`.

    An order may need "log_probs", "importance" (with "no_draft": of z, whatever the estimator reads), "order_weights",
    "history" or "drawn", the tokens sampled at all open positions. If none of a sampler's components needs predictions,
    the network predicts only the chosen positions.
    """

    def __call__(self, step: Step) -> Tensor:
        """Return a score for each open position, float [A, L]; the highest comes first, and ties run left to right."""
        ...


@component
class RandomOrder(Order):
    """A uniformly random order, as in the reverse process of uniform masking (Sahoo et al., arXiv:2406.07524)."""

    name = "random"
    summary = "uniformly random, as in ancestral sampling of MDLM"
    refs = ("arXiv:2406.07524",)
    accepts_padding = True

    def __call__(self, step: Step) -> Tensor:
        """Return uniform random numbers, float64 [A, L]."""
        return step.uniform("order")


@component
class LeftToRightOrder(Order):
    """The leftmost masked position first, as in autoregressive generation."""

    name = "left_to_right"
    summary = "left to right"
    accepts_padding = True
    deterministic = True

    def __call__(self, step: Step) -> Tensor:
        """Return the negated positions, float64 [A, L]."""
        import torch

        length = step.open.shape[1]
        return torch.arange(0, -length, -1, device=step.open.device, dtype=torch.float64).expand(step.open.shape)


@component
class UncertaintyOrder(Order):
    """Positions sorted by the uncertainty of the prediction, optionally multiplied by the token's importance.

    Decoding the most certain positions first with `margin` or `confidence` (Chang et al., arXiv:2202.04200; Kim et al.,
    arXiv:2502.06768) lowers diversity, so report the unigram entropy. We know of no published results for the most
    uncertain positions first. The importance is that of the masked token if the estimator reads z, and otherwise that
    of the token in a draft: z with the most probable token at every mask. Without an estimator the factor is 1.
    """

    name = "uncertainty"
    summary = "by uncertainty (optionally × importance), with the most certain or the most uncertain positions first"
    refs = ("arXiv:2202.04200", "arXiv:2502.06768", "ATAT")
    accepts_padding = True
    deterministic = True

    uncertainty: Uncertainty = component_param("uncertainty", "entropy", help="uncertainty metric")
    first: Literal["most_certain", "most_uncertain"] = param(
        "most_certain", help="whether positions of low or of high uncertainty (times importance) come first"
    )
    importance: bool = param(False, help="multiply the uncertainty by the token's importance")
    draft: bool = param(
        True, help="whether an estimator that reads x scores a draft; the ATAT report has it score z with its masks"
    )

    @property
    @override
    def needs(self) -> frozenset[str]:
        weighed = {"importance"} if self.draft else {"importance", "no_draft"}
        return frozenset({"log_probs", *(weighed if self.importance else ())})

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if `draft` is false but no estimator that reads x scores the tokens."""
        if not self.draft and not (self.importance and experiment.parts["estimator"].reads == "x"):
            yield Problem(
                "sampler",
                "the decoding order's draft = false only works with importance = true and an estimator that reads the "
                "clean sequence; leave draft out",
            )

    def __call__(self, step: Step) -> Tensor:
        """Return the signed uncertainty, float [A, L], optionally multiplied by the importance."""
        score = step.measure(self.uncertainty)
        if self.importance and step.importance is not None:
            score = score * step.importance
        return score if self.first == "most_uncertain" else -score


@component
class ImportanceOrder(Order):
    """Positions sorted by the importance of the masked tokens, as in training with the masking `reveal`.

    With an estimator that reads z, the order is known before the forward pass, and the network predicts only the chosen
    positions. Other estimators score a draft: z with the most probable token at every mask. Without an estimator the
    order is left to right.
    """

    name = "importance"
    summary = "by the estimated importance of the masked token, easiest or hardest first"
    refs = ("ATAT",)
    accepts_padding = True
    deterministic = True
    needs = frozenset({"importance"})

    first: Literal["easy", "hard"] = param(
        "easy", help="whether positions of low importance (easy) or of high importance (hard) come first"
    )

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the model has no trained importance estimator."""
        if "estimator" not in experiment.parts["objective"].uses or not experiment.parts["estimator"].learns:
            yield Problem(
                "sampler",
                "the decoding order 'importance' needs an estimator trained with the model, and this "
                'experiment does not have one; set estimator.use = "transformer" and estimator.reads = "z", or use a '
                "different sampler",
            )

    def __call__(self, step: Step) -> Tensor:
        """Return the signed importance, float [A, L]."""
        if step.importance is None:
            return step.open.float().zero_()
        return step.importance if self.first == "hard" else -step.importance


@component
class LearnedOrder(Order):
    """A learned order: masked position i is next with probability ŵ_i / Σ ŵ, from the objective's reverse weights ŵ.

    The order is sampled by adding Gumbel noise to log ŵ, which is known before the token is sampled. With one position
    per step, this is exactly the reverse process of the adaptive bound (objective `adaptive`). Several positions are
    sampled without replacement (Plackett–Luce).
    """

    name = "learned"
    summary = "by the reverse weights that the objective `adaptive` learns"
    refs = ("arXiv:2602.02112", "arXiv:1903.06059")
    accepts_padding = True
    needs = frozenset({"order_weights"})

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the objective does not learn an order."""
        objective = experiment.parts["objective"]
        if not objective.learns_order:
            yield Problem(
                "sampler",
                f"the decoding order 'learned' needs reverse weights, which objective {objective.name!r} does not "
                'learn; set objective.use = "adaptive", or choose a different sampler',
            )

    def __call__(self, step: Step) -> Tensor:
        """Return log ŵ plus Gumbel noise, float64 [A, L]."""
        if step.order_weights is None:
            raise RuntimeError("the decoding order 'learned' needs the model's order weights")
        return step.spread(step.order_weights.double()) - (-step.uniform("order").log()).log()


@component
class BlockwiseOrder(Order):
    """Blocks of positions from left to right, with an inner decoding order within each block.

    If a step unmasks more positions than are left in a block, it continues in the next one. The sampler
    `semi_autoregressive` finishes each block before it starts the next.
    """

    name = "blockwise"
    summary = "blocks from left to right, with an inner order within each block"
    refs = ("arXiv:2210.17432", "arXiv:2502.09992")

    block_size: int = param(32, help="number of positions to fill per block", ge=1)
    inner: Order = component_param("order", "random", help="decoding order within a block")

    @property
    @override
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    @property
    @override
    def deterministic(self) -> bool:
        return self.inner.deterministic

    @property
    @override
    def accepts_padding(self) -> bool:
        return self.inner.accepts_padding

    @override
    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        return self.inner.check(experiment)

    def __call__(self, step: Step) -> Tensor:
        """Return scores that sort by block, and within a block by the rank in the inner order, float64 [A, L]."""
        import torch

        length = step.open.shape[1]
        # Ranks, because a large score would move a position into another block.
        ranking = self.inner(step).masked_fill(~step.open, -math.inf).sort(dim=1, descending=True, stable=True).indices
        numbers = torch.arange(length, device=ranking.device, dtype=torch.float64).expand(ranking.shape)
        rank = torch.zeros_like(numbers).scatter(1, ranking, numbers)
        block = (step.free.cumsum(1) - 1).clamp(min=0) // self.block_size
        return -(block * length + rank)


@component
class DilatedOrder(Order):
    """A coarse-to-fine order: distant positions first, because neighbouring tokens depend most on each other.

    Of n positions to fill, group t contains those that are not in an earlier group and whose number is a multiple of
    ⌊n/a^t⌋, where a is `base`. The groups are filled one after another, each in a random order. As published
    (Luxembourg et al., arXiv:2506.19037), each step fills one of ⌈log_a n⌉ groups; here it may fill more or less.
    """

    name = "dilated"
    summary = "coarse to fine: positions far apart first, then those between them"
    refs = ("arXiv:2506.19037",)
    accepts_padding = True

    base: int = param(
        2, help="a, the factor by which the distance between positions shrinks from one group to the next", ge=2
    )

    def __call__(self, step: Step) -> Tensor:
        """Return the negated group number plus a uniform random number in [0, 1), float64 [A, L]."""
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
    """The base class of `strided` and `position_set`: step (j + offset) mod s fills position j of those to fill."""

    stride: int = param(16, help="s, the number of decoding steps", ge=1)
    offset: Offset = param("none", help="offset of the steps; none: 0; random: a random one for each sequence")

    @property
    def deterministic(self) -> bool:
        """Whether no random numbers are used, that is, whether the offset is 0 for all sequences."""
        return self.offset == "none"

    def offsets(self, seeds: Tensor) -> Tensor:
        """Return the offsets, int64 [A], 0 or random in [0, stride) from each row's seed, on the seeds' device."""
        import torch

        from atat_zoo.diffusion.randomness import fold, stream, uniform

        if self.offset == "none":
            return torch.zeros_like(seeds)
        drawn = uniform(fold(fold(seeds, self.stride), stream(0, "order")), 1, torch.float64)
        return (drawn * self.stride).floor().long().squeeze(1)


@component
class StridedOrder(Strided, Order):
    """The strided order: position number j of those to fill is filled in step (j + o) mod s, with the offset o.

    The positions of one step are s apart, so their tokens depend little on each other, and tokens_per_step
    `position_set` samples them at once.
    """

    name = "strided"
    summary = "strided: step i of s fills every s-th position"
    accepts_padding = True

    def __call__(self, step: Step) -> Tensor:
        """Return the negated step of each position, float64 [A, L]."""
        number = step.free.cumsum(1) - 1
        return -((number + self.offsets(step.seeds)[:, None]) % self.stride).double()


@component
class DrawnProbabilityOrder(Order):
    """Positions sorted by the sampled token's probability, highest first (MaskGIT: Chang et al., arXiv:2202.04200).

    This order is not exact, even with one position per step and an exact denoiser: it has the effect of a lower
    temperature. Gumbel noise on the log-probabilities reduces this effect; its scale, the choice temperature, decreases
    linearly to 0.
    """

    name = "drawn_probability"
    summary = "by the probability of the sampled token, as in MaskGIT"
    refs = ("arXiv:2202.04200",)
    accepts_padding = True
    needs = frozenset({"drawn"})

    choice_temperature: float = param(
        0.0, help="scale of the Gumbel noise on log-probabilities, which decreases linearly to 0; 0: no noise", ge=0
    )

    def __call__(self, step: Step) -> Tensor:
        """Return log p_θ of the sampled tokens plus Gumbel noise, float64 [A, L]."""
        if step.drawn_log_probs is None:
            raise RuntimeError("the decoding order 'drawn_probability' needs the sampled tokens")
        score = step.spread(step.drawn_log_probs.double())
        if self.choice_temperature == 0:
            return score
        left = (1 - (step.number + 1) / step.max_steps.double()).clamp(min=0).to(score.device, non_blocking=True)
        u = step.uniform("order").clamp(min=2.0**-54)  # never 0, where the Gumbel noise would be −∞
        return score - self.choice_temperature * left.unsqueeze(1) * (-u.log()).log()
