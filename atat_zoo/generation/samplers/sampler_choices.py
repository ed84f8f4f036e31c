"""The five components of a sampler as one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.generation.samplers.order import LeftToRightOrder, Order, RandomOrder
from atat_zoo.generation.samplers.remasking import NoRemasking, Remasking
from atat_zoo.generation.samplers.stopping_rule import StepsStoppingRule, StoppingRule
from atat_zoo.generation.samplers.token_sampling import CategoricalTokenSampling, TokenSampling
from atat_zoo.generation.samplers.tokens_per_step import OneAtATimeTokensPerStep, TokensPerStep
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen(kw_only=True)
class SamplerChoices:
    """The five components of a sampler; `run` in `atat_zoo.generation.samplers.loop` executes them."""

    tokens_per_step: TokensPerStep
    order: Order = attrs.field(factory=RandomOrder)
    remasking: Remasking = attrs.field(factory=NoRemasking)
    stopping_rule: StoppingRule = attrs.field(factory=StepsStoppingRule)
    token_sampling: TokenSampling = attrs.field(factory=CategoricalTokenSampling)

    @property
    def all(self) -> tuple[SamplerComponent, ...]:
        """The five components."""
        return self.order, self.tokens_per_step, self.remasking, self.stopping_rule, self.token_sampling

    @property
    def needs(self) -> frozenset[str]:
        """The combined needs of all components."""
        return frozenset().union(*(part.needs for part in self.all))

    def needs_all_logits(self, importance_reads: str = "x") -> bool:
        """Return whether a component needs the predictions at all open positions, given `Denoiser.importance_reads`."""
        # Importance that is read from z is known without them.
        free = {"confidence", "importance"} if importance_reads == "z" else {"confidence"}
        return self.stopping_rule.active or bool(self.needs - free)

    @property
    def causal(self) -> bool:
        """Whether the components fill one mask at a time, always the leftmost, and need a prediction only there."""
        alone = isinstance(self.order, LeftToRightOrder) and isinstance(self.tokens_per_step, OneAtATimeTokensPerStep)
        return alone and not self.remasking.active and not self.needs_all_logits()

    def incompatibilities(self) -> Iterator[Problem]:
        """Yield a problem for each pair of incompatible components."""
        if self.remasking.active:
            remasking, tokens_per_step = self.remasking.name, self.tokens_per_step.name
            if self.remasking.needs_grid and self.tokens_per_step.rates(0) is None:
                yield Problem(
                    "sampler",
                    f"remasking {remasking!r} needs a grid of mask rates, which tokens_per_step {tokens_per_step!r} "
                    'does not have; set sampler.tokens_per_step.use = "binomial" or "fixed", or choose a different '
                    "remasking",
                )
            elif self.tokens_per_step.max_steps_for(1) != self.tokens_per_step.max_steps_for(2**20):
                yield Problem(
                    "sampler",
                    f"remasking {remasking!r} masks tokens again, so tokens_per_step {tokens_per_step!r} needs a "
                    f"maximum number of steps; set sampler.tokens_per_step.steps, or choose one with steps",
                )
        if {"rescored", "order_weights"} <= self.needs:
            both = f"the order {self.order.name!r} and the remasking {self.remasking.name!r} need two different "
            end = "forward passes in the same step; choose a different order or a different remasking"
            yield Problem("sampler", both + end)

    def max_nfe(self, n: int) -> int:
        """Return the maximum NFE for a row with n open positions."""
        most = self.tokens_per_step.max_steps_for(n) if n else 0
        return most if self.remasking.active else min(most, n)  # without remasking each step fills a position
