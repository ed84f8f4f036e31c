"""The objective of block diffusion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class BlockObjective:
    """Masked diffusion within blocks, autoregression between them (Arriola et al., ICLR 2025, equations 7 and 8).

        loss = Σ_b ω(t_b) Σ_{i in b, masked} −log p_θ(x_i | z_b, x_<b) / Σ maskable

    Every block b has a time of its own, stratified over the blocks of the global batch. One pass over 2L tokens, the
    noisy text and the clean one side by side at the same positions, gives all blocks: a noisy token sees the noisy
    tokens of its block and the clean ones of earlier blocks, a clean token the clean ones of its block and earlier.

    Its perplexity is the bound by exact-k within every block, all blocks at once. A block of the whole length is
    `mdlm`; blocks of one token are autoregressive, and the bound is the likelihood.
    """

    name = "block"
    summary = "masked diffusion within blocks, from left to right between them"
    refs = ("arXiv:2503.09573",)
    uses: ClassVar[frozenset[str]] = frozenset({"backbone", "noise"})
    exact: ClassVar[bool] = False
    size: int = param(16, help="tokens in a block; must divide data.length", ge=1)
    weight: Literal["nelbo", "simple"] = param("nelbo", help="ω: −α'/(1 − α), which is 1/t for linear noise, or 1")

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit: the length, a sampler that is not causal, a backbone that reads t, another bound."""
        from atat_zoo.objectives.causal import bound_is_default, has_no_time, sampler_is_causal

        if experiment.data.length % self.size:
            yield (
                f"objective.size = {self.size} does not divide data.length = {experiment.data.length}; "
                "change one of them"
            )
        yield from sampler_is_causal(experiment, self.size)
        yield from has_no_time(experiment)
        yield from bound_is_default(experiment)

    def build(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from atat_zoo.objectives.block_module import BlockModule

        return BlockModule(context, parts, batch_size, size=self.size, weight=self.weight)
