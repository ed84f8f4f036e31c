"""The objective of autoregressive language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from atat_zoo.registry import component

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class AutoregressiveObjective:
    """Cross-entropy of every token given the tokens before it, with the same backbone under a causal mask.

        loss = Σ_i −log p_θ(x_i | x_<i) / Σ maskable,   i maskable

    The network reads [m, x_1 … x_{L−1}], the embedding of the mask serving as the start, and predicts x_1 … x_L. Its
    perplexity is that of the likelihood itself, by the chain rule, and needs no draws. Text is written from left to
    right; what is given behind a gap stays, and is not looked at.
    """

    name = "autoregressive"
    summary = "next-token prediction with a causal mask; its likelihood is exact"
    refs = ("arXiv:1706.03762",)
    uses: ClassVar[frozenset[str]] = frozenset({"backbone"})
    exact: ClassVar[bool] = True

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit: a sampler that is not causal, a backbone that reads t, another bound."""
        from atat_zoo.objectives.causal import bound_is_default, has_no_time, sampler_is_causal

        yield from sampler_is_causal(experiment, 1)
        yield from has_no_time(experiment)
        yield from bound_is_default(experiment)

    def build(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from atat_zoo.objectives.autoregressive_module import AutoregressiveModule

        return AutoregressiveModule(context, parts, batch_size)
