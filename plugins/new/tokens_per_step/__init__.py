"""A number of tokens per step that grows exponentially."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.tokens_per_step import TokensPerStep
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderTokensPerStep(TokensPerStep):
    """Unmasks ⌈gᵏ⌉ positions in step k = 0, 1, …: with g = 2 (1, 2, 4, 8 …), n tokens take about log₂ n steps."""

    name = "placeholder"
    summary = "exponential growth: 1 token, then 2, 4, 8 and so on"
    refs = ()
    deterministic = True

    growth: float = param(2.0, help="factor g by which the number of tokens grows from step to step", ge=1, le=100)

    def max_steps_for(self, n: int) -> int:
        """Return the number of steps for n masked positions."""
        steps, done = 0, 0
        while done < n:
            done += self.taken(steps)
            steps += 1
        return steps

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return the number of positions to unmask in each of A texts, int64 [A] on the CPU."""
        return step.remaining.clamp(max=self.taken(step.number))

    def taken(self, number: int) -> int:
        """Return ⌈gᵏ⌉ for step k = `number`, but at most 2³⁰."""
        taken = 1.0
        for _ in range(number):
            taken = min(taken * self.growth, 2.0**30)
        return -int(-taken // 1)


@hookimpl
def atat_zoo_tokens_per_step() -> list[type]:
    """Return the components of the kind `tokens_per_step` in this package."""
    return [PlaceholderTokensPerStep]
