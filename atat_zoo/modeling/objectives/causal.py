"""The objectives of models that write a text from left to right, in blocks or one token at a time."""

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
    "ω, loss weight. nelbo: 1/(r·f(r)) for mask rates of density f, or −α'/(1 − α) with rates of the "
    "noise schedule; simple: 1"
)


@component
class BlockObjective(Objective):
    """Masked diffusion within blocks, autoregression between them (Arriola et al., ICLR 2025, equations 7 and 8).

        loss = Σ_b ω(t_b) Σ_{i in b, masked} −log p_θ(x_i | z_b, x_<b) / Σ maskable

    Every block b has its own rate, at the time t_b, stratified over the blocks of the global batch. One pass over 2L
    tokens, the noisy and the clean text at the same positions, predicts all blocks: a noisy token sees the noisy tokens
    of its block and the clean tokens of earlier blocks, a clean token the clean tokens of its block and of earlier
    blocks.

    Its perplexity is the bound by exact-k within every block, all blocks at once. A block as long as the text is
    `mdlm`; blocks of one token are autoregressive, and the bound is the likelihood.
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
        """Yield the problems: the length, rates without a variance, or a choice that does not fit a causal model."""
        if experiment.data.length % self.block_size:
            length = experiment.data.length
            yield Problem(
                "objective.block_size", f"{self.block_size} does not divide data.length = {length}; change one of them"
            )
        yield from not_causal(experiment, self.block_size)
        yield from infinite_weights(experiment)


@component
class AutoregressiveObjective(Objective):
    """Cross-entropy of every token given the tokens before it, with the same backbone under a causal mask.

        loss = Σ_i −log p_θ(x_i | x_<i) / Σ maskable,   i maskable

    The network reads [m, x_1 … x_{L−1}], with the mask as the start token, and predicts x_1 … x_L. Its perplexity is
    that of the exact likelihood, by the chain rule, and needs no draws. Text is written from left to right; given
    tokens behind a gap do not change and are not read.
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
        """Yield the problems: a choice that does not fit a causal model."""
        yield from not_causal(experiment, 1)


def not_causal(experiment: Experiment, block: int) -> Iterator[Problem]:
    """Yield the choices that do not fit a model that reads blocks from left to right.

    These are a sampler that needs more than the leftmost block, a backbone that reads t, and a bound that follows a
    noise schedule, which the evaluation would refuse at the end of the training.
    """
    sampler, objective = experiment.parts["sampler"], experiment.parts["objective"]
    if sampler.blockwise:
        size = sampler.block_size
        if size is not None and block % size:
            yield Problem(
                "sampler.block_size",
                f"{size} does not divide the blocks of {block} of {objective.name!r}; leave it "
                "out, and the blocks are the model's",
            )
    elif not sampler.causal:
        unit = "a block" if block > 1 else "one token"
        yield Problem(
            "sampler",
            f"objective {objective.name!r} writes from left to right, {unit} at a time, and {sampler.name!r}, "
            'as it is set, asks for more; use = "semi_autoregressive" or "left_to_right"',
        )
    yield from has_no_time(experiment)
    yield from has_own_bound(experiment)


def has_own_bound(experiment: Experiment) -> Iterator[Problem]:
    """Yield a sentence if the evaluation's bound follows a noise schedule, which the objective does not."""
    objective, bound = experiment.parts["objective"], experiment.evaluation.bound
    if bound.follows_noise:
        yield Problem(
            "evaluation.bound",
            f"objective {objective.name!r} has a bound of its own, and {bound.name!r} has no meaning "
            "there; leave it at exact_k",
        )


def has_no_time(experiment: Experiment) -> Iterator[Problem]:
    """Yield a sentence if the backbone reads a diffusion time that the objective cannot give."""
    backbone, objective = experiment.parts["backbone"], experiment.parts["objective"]
    if backbone.reads_time:
        yield Problem(
            "backbone.time_conditioning",
            f"objective {objective.name!r} has no single diffusion time for a sequence; set it to false",
        )


def infinite_weights(experiment: Experiment) -> Iterator[Problem]:
    """Yield a sentence if an objective with the bound's own weights draws rates for which these have no variance."""
    rates, objective = experiment.parts["mask_rates"], experiment.parts["objective"]
    if objective.weight == "nelbo" and not rates.finite_variance:
        yield Problem(
            "mask_rates",
            'with objective.weight = "nelbo" a row weighs 1/(r·f(r)), which has an infinite variance under '
            f'{rates.name!r}, as it is set; set mask_rates.uniform_share above 0, or objective.weight = "simple"',
        )
