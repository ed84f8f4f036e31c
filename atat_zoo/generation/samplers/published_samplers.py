"""The published samplers, each with its name, reference, parameters and components.

A component that a sampler does not set is the default of `SamplerChoices`. `fitting` returns the samplers that fit an
experiment, at the given numbers of steps, as the rows of a benchmark.
"""

from collections.abc import Sequence
from typing import Any, Literal

from typing_extensions import override

from atat_zoo.experiment import Experiment, conflicts_with
from atat_zoo.generation.samplers import order as orders
from atat_zoo.generation.samplers import remasking as remaskings
from atat_zoo.generation.samplers import stopping_rule as stopping_rules
from atat_zoo.generation.samplers import token_sampling as token_samplings
from atat_zoo.generation.samplers import tokens_per_step as paces
from atat_zoo.generation.samplers.composite import CappedSampler, CompositeSampler, SteppedSampler, TemperedSampler
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.modeling.noise import LinearNoise, Noise
from atat_zoo.modeling.uncertainty import ConfidenceUncertainty, EntropyUncertainty, MarginUncertainty, Uncertainty
from atat_zoo.registry import Zoo, component, component_base, component_param, param, values_of

Row = tuple[str, int | None, Any]  # name, steps, sampler
UNNAMED = frozenset({"combination"})  # not a sampler by itself: its components must be named
REFERENCE = "ancestral"  # the sampler that the others are compared with


@component
class AncestralSampler(SteppedSampler):
    """The reverse process of MDLM on a time grid (Sahoo et al., arXiv:2406.07524).

    A step that unmasks nothing needs no forward pass, as in MDLM's cached sampler.
    """

    name = "ancestral"
    summary = "ancestral sampling of MDLM, on a time grid"
    refs = ("arXiv:2406.07524",)

    @override
    def parts(self) -> SamplerChoices:
        return SamplerChoices(
            tokens_per_step=paces.BinomialTokensPerStep(steps=self.steps, noise=LinearNoise()),
            token_sampling=self.token_sampling,
        )

    @property
    @override
    def for_hub(self) -> dict[str, Any]:
        return {"sampler": "ancestral", "steps": self.steps, "temperature": self.temperature}


@component
class LeftToRightSampler(CompositeSampler):
    """Exact left-to-right decoding with one token per step, for autoregressive and block-diffusion models."""

    name = "left_to_right"
    summary = "left to right, one token per step; for autoregressive and block-diffusion models"

    token_sampling: token_samplings.TokenSampling = component_param(
        "token_sampling", "categorical", help="token sampling"
    )

    @override
    def parts(self) -> SamplerChoices:
        return SamplerChoices(
            order=orders.LeftToRightOrder(),
            tokens_per_step=paces.OneAtATimeTokensPerStep(),
            token_sampling=self.token_sampling,
        )


@component
class StridedSampler(orders.Strided, CompositeSampler):
    """Strided decoding: position number j of those to fill is sampled in step j mod s.

    A sequence of any length takes at most s forward passes. The order does not adapt to the predictions, so this
    sampler is the baseline for an adaptive sampler with the same NFE. With a random offset o per sequence, the step is
    (j + o) mod s, and the distribution is the mean over the s offsets.
    """

    name = "strided"
    summary = "strided: step i of s fills every s-th position; for set-causal and strided models"
    refs = ("arXiv:2601.16971",)

    token_sampling: token_samplings.TokenSampling = component_param(
        "token_sampling", "categorical", help="token sampling"
    )

    @override
    def parts(self) -> SamplerChoices:
        order = orders.StridedOrder(stride=self.stride, offset=self.offset)
        tokens_per_step = paces.PositionSetTokensPerStep(stride=self.stride, offset=self.offset)
        return SamplerChoices(order=order, tokens_per_step=tokens_per_step, token_sampling=self.token_sampling)

    @property
    @override
    def for_hub(self) -> dict[str, Any] | None:
        if self.offset != "none" or not isinstance(self.token_sampling, token_samplings.CategoricalTokenSampling):
            return None
        return {"sampler": "strided", "steps": self.stride, "temperature": self.token_sampling.temperature}


@component
class CombinationSampler(CompositeSampler):
    """A sampler composed of any decoding order, tokens per step, remasking, stopping rule and token sampling.

    Each is set in its own table; the defaults are those of `ancestral`.
    """

    name = "combination"
    summary = "any combination of decoding order, tokens per step, remasking, stopping rule and token sampling"

    order: orders.Order = component_param("order", "random", help="decoding order")
    tokens_per_step: paces.TokensPerStep = component_param(
        "tokens_per_step", "binomial", help="number of tokens per decoding step"
    )
    remasking: remaskings.Remasking = component_param("remasking", "none", help="component that remasks sampled tokens")
    stopping_rule: stopping_rules.StoppingRule = component_param(
        "stopping_rule", "steps", help="stopping rule: when to fill all remaining masks in one step"
    )
    token_sampling: token_samplings.TokenSampling = component_param(
        "token_sampling", "categorical", help="token sampling"
    )

    @override
    def parts(self) -> SamplerChoices:
        return SamplerChoices(**values_of(self))


@component
class FirstHittingSampler(CappedSampler):
    """Ancestral sampling with infinitely many steps, one forward pass per token (Zheng et al., arXiv:2409.02908).

    It is exact because it samples the time at which each next token is unmasked. With `steps`, several tokens share a
    time, and sampling is no longer exact.
    """

    name = "first_hitting"
    summary = "first-hitting sampler: exact ancestral sampling with one step per token"
    refs = ("arXiv:2409.02908",)

    noise: Noise = component_param("noise", "linear", help="noise schedule in the training of a time-conditioned model")

    @override
    def parts(self) -> SamplerChoices:
        return SamplerChoices(
            tokens_per_step=paces.FirstHittingTokensPerStep(steps=self.steps, noise=self.noise),
            token_sampling=self.token_sampling,
        )


@component
class MaskGITSampler(SteppedSampler):
    """Sampling that keeps the most probable tokens, few at first, then many (Chang et al., arXiv:2202.04200).

    Every step samples all masked tokens. For any number of steps, the samples are more probable and less diverse than
    those of the model's distribution.
    """

    name = "maskgit"
    summary = "MaskGIT: samples everywhere and keeps the most probable tokens, few in the first steps, many in the last"
    refs = ("arXiv:2202.04200",)

    choice_temperature: float = param(
        4.5, help="scale of the Gumbel noise on log-probabilities, which decreases linearly to 0; 0: no noise", ge=0
    )

    @override
    def parts(self) -> SamplerChoices:
        order = orders.DrawnProbabilityOrder(choice_temperature=self.choice_temperature)
        return self.in_order(order, paces.CosineTokensPerStep(steps=self.steps))


@component
class MarginSampler(SteppedSampler):
    """Decoding by the margin between the two most probable tokens, largest first (Kim et al., arXiv:2502.06768)."""

    name = "margin"
    summary = "largest margin between the two most probable tokens first, with the same number of tokens in every step"
    refs = ("arXiv:2502.06768",)

    @override
    def parts(self) -> SamplerChoices:
        order = orders.UncertaintyOrder(uncertainty=MarginUncertainty())
        return self.in_order(order, paces.FixedTokensPerStep(steps=self.steps))


@component
class EntropySampler(SteppedSampler):
    """Decoding by entropy, lowest first, as in Dream (Ye et al., arXiv:2508.15487); otherwise like `margin`."""

    name = "entropy"
    summary = "lowest entropy first, with the same number of tokens in every step"
    refs = ("arXiv:2508.15487",)

    @override
    def parts(self) -> SamplerChoices:
        order = orders.UncertaintyOrder(uncertainty=EntropyUncertainty())
        return self.in_order(order, paces.FixedTokensPerStep(steps=self.steps))


@component
class EntropyBoundedSampler(CappedSampler):
    """The EB-sampler, with as many tokens per step as an entropy bound γ allows (Ben-Hamu et al., arXiv:2505.24857)."""

    name = "entropy_bounded"
    summary = "EB-sampler: lowest entropy first, with as many tokens per step as an entropy bound allows"
    refs = ("arXiv:2505.24857",)

    gamma: float = param(0.1, help="γ, the entropy bound in nats; a higher bound means fewer decoding steps", ge=0)
    order: orders.Order = component_param(
        "order", {"use": "uncertainty", "uncertainty": "entropy"}, help="decoding order; default: lowest entropy first"
    )

    @override
    def parts(self) -> SamplerChoices:
        return self.in_order(self.order, paces.EntropyBoundedTokensPerStep(gamma=self.gamma, steps=self.steps))


@component
class ConfidenceThresholdSampler(CappedSampler):
    """Decoding of all positions above a confidence threshold, as in Fast-dLLM (Wu et al., arXiv:2505.22618).

    Fast-dLLM also uses blocks and temperature 0.
    """

    name = "confidence_threshold"
    summary = "each step fills all positions above a confidence threshold, as in Fast-dLLM"
    refs = ("arXiv:2505.22618",)

    threshold: float = param(0.9, help="threshold on max p_θ; 1 fills one position per step", ge=0, le=1)

    @override
    def parts(self) -> SamplerChoices:
        order = orders.UncertaintyOrder(uncertainty=ConfidenceUncertainty())
        return self.in_order(order, paces.ConfidenceThresholdTokensPerStep(threshold=self.threshold, steps=self.steps))


@component
class KLASSSampler(CappedSampler):
    """Decoding of all positions with confident and stable predictions, as in KLASS (Kim et al., arXiv:2511.05664).

    KLASS also uses blocks and temperature 0.
    """

    name = "klass"
    summary = "KLASS: all positions whose prediction is confident and stable, at least one per step"
    refs = ("arXiv:2511.05664",)

    confidence_threshold: float = param(
        0.9, help="threshold on max p_θ above which a prediction is confident", ge=0, le=1
    )
    kl_threshold: float = param(
        0.01,
        help="threshold in nats on the KL divergence from the previous prediction, below which a prediction is stable",
        gt=0,
    )
    history_length: int = param(2, help="consecutive decoding steps for which a prediction must be stable", ge=1)

    @override
    def parts(self) -> SamplerChoices:
        order = orders.UncertaintyOrder(uncertainty=ConfidenceUncertainty())
        tokens_per_step = paces.KLStableTokensPerStep(
            confidence_threshold=self.confidence_threshold,
            kl_threshold=self.kl_threshold,
            history_length=self.history_length,
            steps=self.steps,
        )
        return self.in_order(order, tokens_per_step)


@component
class UncertaintyGuidedSampler(TemperedSampler):
    """ATAT's sampler: order by uncertainty × importance, more tokens in steps of low uncertainty, early stopping."""

    name = "uncertainty_guided"
    summary = "ATAT's sampler: order by uncertainty × importance, adaptive number of tokens per step, early stopping"
    refs = ("ATAT",)

    uncertainty: Uncertainty = component_param("uncertainty", "entropy", help="uncertainty metric")
    first: Literal["most_certain", "most_uncertain"] = param(
        "most_certain", help="whether the most certain or the most uncertain positions come first"
    )
    importance: bool = param(True, help="multiply the uncertainty by the token's importance")
    min_steps: int = param(10, help="number of decoding steps if the mean uncertainty is 0", ge=1)
    max_steps: int = param(100, help="number of decoding steps if the mean uncertainty is 1 (maximum NFE)", ge=1)
    threshold: float = param(
        0.3, help="mean uncertainty below which one step fills all masks; 0 never stops early", ge=0, le=1
    )

    @override
    def parts(self) -> SamplerChoices:
        metric = self.uncertainty
        return SamplerChoices(
            order=orders.UncertaintyOrder(uncertainty=metric, first=self.first, importance=self.importance),
            tokens_per_step=paces.AdaptiveTokensPerStep(
                min_steps=self.min_steps, max_steps=self.max_steps, uncertainty=metric
            ),
            stopping_rule=stopping_rules.UncertaintyStoppingRule(threshold=self.threshold, uncertainty=metric),
            token_sampling=self.token_sampling,
        )


@component
class ConfidenceHistorySampler(CompositeSampler):
    """Early stopping and a temperature that depend on the running confidence (see `ConfidenceHistoryStoppingRule`)."""

    name = "confidence_history"
    summary = "temperature and early stopping that depend on the confidence in the last decoding steps"
    refs = ("ATAT",)

    steps: int = param(64, help="number of decoding steps (maximum NFE)", ge=1)
    order: orders.Order = component_param("order", "random", help="decoding order")
    window: int = param(5, help="number of most recent decoding steps over which confidence is averaged", ge=1)
    threshold: float = param(
        0.9, help="running confidence above which one step fills all masks; 1 never stops early", ge=0, le=1
    )
    confident_temperature: float = param(0.8, help="temperature at a running confidence of 1", gt=0)
    uncertain_temperature: float = param(1.0, help="temperature at a running confidence of 0", gt=0)

    @override
    def parts(self) -> SamplerChoices:
        return SamplerChoices(
            order=self.order,
            tokens_per_step=paces.FixedTokensPerStep(steps=self.steps),
            stopping_rule=stopping_rules.ConfidenceHistoryStoppingRule(window=self.window, threshold=self.threshold),
            token_sampling=token_samplings.ConfidenceTemperedTokenSampling(
                confident_temperature=self.confident_temperature,
                uncertain_temperature=self.uncertain_temperature,
                window=self.window,
            ),
        )


@component
class PolicySampler(TemperedSampler):
    """Decoding by estimated importance; if the estimator reads z, the masking `reveal` trains for this order."""

    name = "policy"
    summary = "order by the learned importance, easiest or hardest positions first, with any number of tokens per step"
    refs = ("ATAT",)

    first: Literal["easy", "hard"] = param("easy", help="whether the easiest or the hardest positions come first")
    tokens_per_step: paces.TokensPerStep = component_param(
        "tokens_per_step", "fixed", help="number of tokens per decoding step"
    )

    @override
    def parts(self) -> SamplerChoices:
        return self.in_order(orders.ImportanceOrder(first=self.first), self.tokens_per_step)


@component
class LearnedOrderSampler(CappedSampler):
    """The reverse process of the adaptive bound: steps sample a position (several with `steps`) by ŵ, and its token."""

    name = "learned_order"
    summary = "reverse process of the objective `adaptive`: samples a position by its learned weight, then its token"
    refs = ("arXiv:2602.02112",)

    @override
    def parts(self) -> SamplerChoices:
        steps = self.steps
        pace = paces.OneAtATimeTokensPerStep() if steps is None else paces.FixedTokensPerStep(steps=steps)
        return self.in_order(orders.LearnedOrder(), pace)


@component_base
class _Reworked(SteppedSampler):
    """The base class of the ReMDM samplers: ancestral sampling with remasking and nucleus sampling."""

    refs = ("arXiv:2503.00307",)

    top_p: float = param(0.9, help="p, total probability of the nucleus; 1 excludes no token", gt=0, le=1)

    def remasked(
        self, remasking: remaskings.Remasking, tokens_per_step: paces.TokensPerStep | None = None
    ) -> SamplerChoices:
        tokens_per_step = tokens_per_step or paces.BinomialTokensPerStep(steps=self.steps, noise=LinearNoise())
        return SamplerChoices(
            tokens_per_step=tokens_per_step,
            remasking=remasking,
            token_sampling=token_samplings.NucleusTokenSampling(top_p=self.top_p, temperature=self.temperature),
        )


@component
class ReMDMCapSampler(_Reworked):
    """Ancestral sampling that remasks tokens with probability σ = min(η, σ_max) (Wang et al., arXiv:2503.00307)."""

    name = "remdm_cap"
    summary = "ReMDM-cap: ancestral sampling with remasking at a capped probability"

    eta: float = param(
        0.04, help="η, cap on the remasking probability; published: 0.04, or 0.008 with one step per token", ge=0, le=1
    )

    @override
    def parts(self) -> SamplerChoices:
        return self.remasked(remaskings.ReMDMCapRemasking(eta=self.eta))


@component
class ReMDMRescaleSampler(_Reworked):
    """Ancestral sampling that remasks tokens with probability σ = η σ_max (Wang et al., arXiv:2503.00307)."""

    name = "remdm_rescale"
    summary = "ReMDM-rescale: ancestral sampling with remasking at a fraction of the maximum probability"

    eta: float = param(0.015, help="η, remasking probability as a fraction of its maximum", ge=0, le=1)

    @override
    def parts(self) -> SamplerChoices:
        return self.remasked(remaskings.ReMDMRescaleRemasking(eta=self.eta))


@component
class ReMDMConfSampler(_Reworked):
    """Ancestral sampling that remasks improbable tokens; see `ReMDMConfRemasking` (Wang et al., arXiv:2503.00307)."""

    name = "remdm_conf"
    summary = "ReMDM-conf: ancestral sampling that remasks low-confidence tokens more often"

    eta: float = param(1.0, help="η, sum of the remasking probabilities as a fraction of its maximum", ge=0, le=1)

    @override
    def parts(self) -> SamplerChoices:
        return self.remasked(remaskings.ReMDMConfRemasking(eta=self.eta))


@component
class ReMDMLoopSampler(_Reworked):
    """Sampling that fills most of a sequence, revises it, then fills the rest (Wang et al., arXiv:2503.00307)."""

    name = "remdm_loop"
    summary = "ReMDM-loop: fills most of a sequence, revises it by remasking, then fills the rest"

    eta: float = param(0.02, help="η, maximum probability with which a step remasks a visible token", ge=0, le=1)
    height: float = param(0.9, help="fraction of visible tokens during the revision", gt=0, lt=1)
    begin: float = param(0.55, help="time at which the revision begins; time runs from 1 to 0", gt=0, lt=1)
    end: float = param(0.05, help="time at which the revision ends; less than `begin`", gt=0, lt=1)

    @override
    def parts(self) -> SamplerChoices:
        tokens_per_step = paces.PlateauTokensPerStep(
            steps=self.steps, height=self.height, begin=self.begin, end=self.end
        )
        return self.remasked(remaskings.ReMDMLoopRemasking(eta=self.eta), tokens_per_step)


@component
class P2Sampler(SteppedSampler):
    """Path planning, which samples every mask and keeps the most probable tokens (Peng et al., arXiv:2502.03540)."""

    name = "p2"
    summary = "P2 (path planning): samples everywhere and keeps the most probable tokens, new or old"
    refs = ("arXiv:2502.03540",)

    eta: float = param(
        1.0,
        help="η, weight of the log-probability of tokens sampled before the step; 0 never remasks these tokens",
        ge=0,
    )

    @override
    def parts(self) -> SamplerChoices:
        return SamplerChoices(
            tokens_per_step=paces.EverythingTokensPerStep(steps=self.steps),
            remasking=remaskings.PlannerRemasking(eta=self.eta),
            token_sampling=self.token_sampling,
        )


def fitting(
    experiment: Experiment, steps: Sequence[int], rows: Sequence[Row] | None = None
) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of the samplers that fit an experiment, the reference first, and by name why others do not fit.

    `steps` are in ascending order, and the reference, `ancestral`, takes the last of them. The candidates are `rows`,
    or by default every sampler except `combination` at each of the `steps`. If the experiment's own sampler does not
    fit with the settings of a row, the row has the experiment's settings instead.
    """
    own: Any = experiment.parts["sampler"]
    if rows is None:
        rows = [row for name in Zoo.load().names("sampler") if name not in UNNAMED for row in at_steps(name, steps)]
    first = at_steps(REFERENCE, steps[-1:])[0]
    fits: list[Row] = []
    refused: dict[str, str] = {}
    for name, number, sampler in [first, *(row for row in rows if row != first)]:
        problems = conflicts_with(experiment, {"sampler": sampler})
        if problems and name != own.name:
            refused[name] = str(problems[0])
        else:
            fits.append((name, number, own if problems else sampler))
    return fits, refused


def at_steps(name: str, steps: Sequence[int]) -> list[Row]:
    """Return a sampler's rows (name, steps, sampler) for `steps`, or one with steps None if they cannot be set."""
    zoo = Zoo.load()
    parameters, spec = zoo.describe("sampler", name).parameters, zoo.spec("sampler", name)
    cap = next((key for key in ("steps", "max_steps") if key in parameters), None)
    if cap is None:
        return [(name, None, spec)]
    tables: list[dict[str, Any]] = [{"use": name, cap: n} for n in steps]
    if "min_steps" in parameters:
        tables = [table | {"min_steps": min(spec.min_steps, table[cap])} for table in tables]
    return [(name, table[cap], zoo.spec("sampler", table)) for table in tables]
