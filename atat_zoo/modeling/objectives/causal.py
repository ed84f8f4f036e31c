"""The objectives of models that generate from left to right, block by block or token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from atat_zoo.modeling.objectives import Objective
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment

# Help of the weight in objectives that draw rates.
OMEGA = (
    "ω, loss weight. nelbo: 1/(r·f(r)) for mask rates r with density f, or −α'/(1 − α) for rates from the "
    "noise schedule; simple: 1"
)


@component
class BlockObjective(Objective):
    """Masked diffusion within blocks and autoregression between them (Arriola et al., ICLR 2025, equations 7 and 8).

        loss = Σ_b ω(t_b) Σ_{i in b, masked} −log p_θ(x_i | z_b, x_<b) / Σ maskable

    Every block b has its own mask rate, at a time t_b stratified over the blocks of the global batch. One forward pass
    over 2L tokens, the noisy and the clean sequence at the same positions, predicts all blocks: a noisy token attends
    to the noisy tokens of its block and the clean tokens of earlier blocks, and a clean token attends to the clean
    tokens of its own and earlier blocks.

    The bound behind its perplexity is estimated with exact-k in every block, for all blocks at once. With one block per
    sequence, the loss is that of `mdlm`. With blocks of one token, the model is autoregressive, and the bound is exact.
    """

    name = "block"
    summary = "block diffusion (BD3-LM): masked diffusion within blocks, autoregressive between blocks"
    refs = ("arXiv:2503.09573",)
    network = "atat_zoo.modeling.objectives.causal_module:BlockModule"
    uses = frozenset({"backbone", "noise", "mask_rates"})
    masks_attention = True
    block_size: int = param(16, help="tokens per block; must divide data.length", ge=1)
    weight: Literal["nelbo", "simple"] = param("nelbo", help=OMEGA)

    @override
    def factorisations(self, experiment: Experiment) -> Mapping[str, str]:
        return {"nelbo": f"blocks of {self.block_size} from left to right, ELBO"}

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        return experiment.train.batch_size, 2 * experiment.data.length

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem for a length, mask-rate distribution or other choice that does not fit block diffusion."""
        if experiment.data.length % self.block_size:
            length = experiment.data.length
            yield Problem(
                "objective.block_size", f"{self.block_size} does not divide data.length = {length}; change one of them"
            )
        yield from not_causal(experiment, self.block_size)
        yield from infinite_weights(experiment)


@component
class AutoregressiveObjective(Objective):
    """Cross-entropy of every token given the tokens before it, from the same backbone with a causal mask.

        loss = Σ_i −log p_θ(x_i | x_<i) / Σ maskable,   i maskable

    The network reads [m, x_1 … x_{L−1}], with the mask as the start token, and predicts x_1 … x_L. Its perplexity is
    exact by the chain rule. Generation goes from left to right; tokens given to the right of a gap are kept but not
    read.
    """

    name = "autoregressive"
    summary = "autoregressive next-token prediction; the likelihood is exact"
    refs = ("arXiv:1706.03762",)
    network = "atat_zoo.modeling.objectives.causal_module:AutoregressiveModule"
    hub_form = "causal"
    uses = frozenset({"backbone"})
    exact = True
    shifted = masks_attention = separates_documents = True

    @override
    def factorisations(self, experiment: Experiment) -> Mapping[str, str]:
        return {"nelbo": "left to right, exact"}

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem for each choice that does not fit an autoregressive model."""
        yield from not_causal(experiment, 1)


def not_causal(experiment: Experiment, block: int) -> Iterator[Problem]:
    """Yield a problem for each choice that does not fit a model that reads blocks from left to right.

    These are a sampler that fills positions outside the leftmost block of `block` tokens, or blocks of a size that does
    not divide `block`; a backbone that reads t; and a bound that follows a noise schedule.
    """
    sampler, objective = experiment.parts["sampler"], experiment.parts["objective"]
    if sampler.blockwise:
        size = sampler.block_size
        if size is not None and block % size:
            yield Problem(
                "sampler.block_size",
                f"{size} does not divide the block size {block} of {objective.name!r}; "
                "remove it to use the block size of the model",
            )
    elif not sampler.causal:
        unit = "a block" if block > 1 else "one token"
        yield Problem(
            "sampler",
            f"objective {objective.name!r} generates from left to right, {unit} at a time, but {sampler.name!r}, "
            'as configured, does not; set sampler.use to "semi_autoregressive" or "left_to_right"',
        )
    yield from has_no_time(experiment)
    yield from has_own_bound(experiment)


def has_own_bound(experiment: Experiment) -> Iterator[Problem]:
    """Yield a problem if evaluation.bound follows a noise schedule, since the objective's own bound follows none."""
    objective, bound = experiment.parts["objective"], experiment.evaluation.bound
    if bound.follows_noise:
        yield Problem(
            "evaluation.bound",
            f"{bound.name!r} draws masks by a noise schedule, but the bound of objective {objective.name!r} does not; "
            "use exact_k instead",
        )


def has_no_time(experiment: Experiment) -> Iterator[Problem]:
    """Yield a problem if the backbone reads the diffusion time, since the objective passes it none."""
    backbone, objective = experiment.parts["backbone"], experiment.parts["objective"]
    if backbone.reads_time:
        yield Problem(
            "backbone.time_conditioning",
            f"objective {objective.name!r} passes no diffusion time to the backbone; set time_conditioning to false",
        )


def infinite_weights(experiment: Experiment) -> Iterator[Problem]:
    """Yield a problem if NELBO weights have infinite variance under the mask-rate distribution."""
    rates, objective = experiment.parts["mask_rates"], experiment.parts["objective"]
    if objective.weight == "nelbo" and not rates.finite_variance:
        yield Problem(
            "mask_rates",
            f'objective.weight = "nelbo" has infinite variance under {rates.name!r}, as configured; '
            'set mask_rates.uniform_share above 0, or objective.weight = "simple"',
        )
