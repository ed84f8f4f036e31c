"""The published samplers: name, reference, parameters and parts of each; other parts are `SamplerParts`' defaults.

`fitting` returns every named one at given numbers of steps: the rows of a benchmark.
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
from atat_zoo.generation.samplers.parts import SamplerParts
from atat_zoo.modeling.noise import LinearNoise, Noise
from atat_zoo.modeling.uncertainty import ConfidenceUncertainty, EntropyUncertainty, MarginUncertainty, Uncertainty
from atat_zoo.registry import Zoo, component, component_base, param, part

Row = tuple[str, int | None, Any]  # name, steps, specification
UNNAMED = frozenset({"combination"})  # no sampler by itself: its parts must be named
REFERENCE = "ancestral"  # the sampler that the others are compared with


@component
class AncestralSampler(SteppedSampler):
    """The reverse process of uniform masking on a grid of times (Sahoo et al., arXiv:2406.07524).

    A step that unmasks nothing costs nothing, as in the published variant with a cache.
    """

    name = "ancestral"
    summary = "the reverse process of uniform masking, on a grid of times"
    refs = ("arXiv:2406.07524",)

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(
            tokens_per_step=paces.BinomialTokensPerStep(steps=self.steps, noise=LinearNoise()),
            token_sampling=self.token_sampling,
        )

    @property
    @override
    def for_hub(self) -> dict[str, Any]:
        return {"sampler": "ancestral", "steps": self.steps, "temperature": self.temperature}


@component
class LeftToRightSampler(CompositeSampler):
    """The leftmost masked position, one at a time, as causal models need: exact, at one evaluation per token."""

    name = "left_to_right"
    summary = "the leftmost masked position, one at a time, as autoregressive and block models need"

    token_sampling: token_samplings.TokenSampling = part(
        "token_sampling", "categorical", help="from log-probabilities to a token"
    )

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(
            order=orders.LeftToRightOrder(),
            tokens_per_step=paces.OneAtATimeTokensPerStep(),
            token_sampling=self.token_sampling,
        )


@component
class StridedSampler(orders.Strided, CompositeSampler):
    """Of the positions to fill, number j has turn j mod s, and all of a turn are drawn in one step.

    A text of any length takes s evaluations. Nothing in it adapts, so it is what an adaptive sampler of as many
    evaluations is to be compared with. With a random offset o, drawn for each text, the turn is (j + o) mod s, and the
    text's distribution is the mean of s.
    """

    name = "strided"
    summary = "positions to fill by their number mod s, all of a number in one step; as strided models need"
    refs = ("arXiv:2601.16971",)

    token_sampling: token_samplings.TokenSampling = part(
        "token_sampling", "categorical", help="from log-probabilities to a token"
    )

    @override
    def parts(self) -> SamplerParts:
        order = orders.StridedOrder(stride=self.stride, offset=self.offset)
        tokens_per_step = paces.PositionSetTokensPerStep(stride=self.stride, offset=self.offset)
        return SamplerParts(order=order, tokens_per_step=tokens_per_step, token_sampling=self.token_sampling)

    @property
    @override
    def for_hub(self) -> dict[str, Any] | None:
        if self.offset != "none" or not isinstance(self.token_sampling, token_samplings.CategoricalTokenSampling):
            return None
        return {"sampler": "strided", "steps": self.stride, "temperature": self.token_sampling.temperature}


@component
class CombinationSampler(CompositeSampler):
    """Any order, tokens per step, remasking, stopping rule and token sampling, each named in its own table; the
    defaults are `ancestral`.
    """

    name = "combination"
    summary = "any order, tokens per step, remasking, stopping rule and token sampling, each with its own table"

    order: orders.Order = part("order", "random", help="which masked position comes first")
    tokens_per_step: paces.TokensPerStep = part(
        "tokens_per_step", "binomial", help="how many positions are unmasked in a step"
    )
    remasking: remaskings.Remasking = part("remasking", "none", help="which drawn tokens are masked again")
    stopping_rule: stopping_rules.StoppingRule = part(
        "stopping_rule", "steps", help="when the rest is filled in one draw"
    )
    token_sampling: token_samplings.TokenSampling = part(
        "token_sampling", "categorical", help="from log-probabilities to a token"
    )

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(
            order=self.order,
            tokens_per_step=self.tokens_per_step,
            remasking=self.remasking,
            stopping_rule=self.stopping_rule,
            token_sampling=self.token_sampling,
        )


@component
class FirstHittingSampler(CappedSampler):
    """Ancestral sampling with infinitely many steps, in as many evaluations as tokens (Zheng et al., arXiv:2409.02908).

    One token at each time at which the process unmasks one, so it is exact. With `steps`, several tokens share a time.
    """

    name = "first_hitting"
    summary = "the reverse process of uniform masking, one token at each of its times"
    refs = ("arXiv:2409.02908",)

    noise: Noise = part("noise", "linear", help="the model's noise, for a model that reads the time")

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(
            tokens_per_step=paces.FirstHittingTokensPerStep(steps=self.steps, noise=self.noise),
            token_sampling=self.token_sampling,
        )


@component
class MaskGITSampler(SteppedSampler):
    """Draw a token everywhere, keep the likeliest, few at first and many at the end (Chang et al., arXiv:2202.04200).

    Its text is likelier and less diverse than the model's distribution with any number of steps.
    """

    name = "maskgit"
    summary = "draw everywhere, keep the likeliest: few positions at first, many at the end"
    refs = ("arXiv:2202.04200",)

    choice_temperature: float = param(4.5, help="of the Gumbel noise on the order, which falls to 0; 0 for none", ge=0)

    @override
    def parts(self) -> SamplerParts:
        order = orders.DrawnProbabilityOrder(choice_temperature=self.choice_temperature)
        return SamplerParts(
            order=order, tokens_per_step=paces.CosineTokensPerStep(steps=self.steps), token_sampling=self.token_sampling
        )


@component
class MarginSampler(SteppedSampler):
    """The position with the largest margin between its two likeliest tokens first (Kim et al., arXiv:2502.06768)."""

    name = "margin"
    summary = "largest margin between the two likeliest tokens first, the same number in each step"
    refs = ("arXiv:2502.06768",)

    @override
    def parts(self) -> SamplerParts:
        order = orders.UncertaintyOrder(uncertainty=MarginUncertainty())
        return SamplerParts(
            order=order, tokens_per_step=paces.FixedTokensPerStep(steps=self.steps), token_sampling=self.token_sampling
        )


@component
class EntropySampler(SteppedSampler):
    """The position with the lowest entropy first, as in Dream (Ye et al., arXiv:2508.15487); otherwise as `margin`."""

    name = "entropy"
    summary = "lowest entropy first, the same number in each step"
    refs = ("arXiv:2508.15487",)

    @override
    def parts(self) -> SamplerParts:
        order = orders.UncertaintyOrder(uncertainty=EntropyUncertainty())
        return SamplerParts(
            order=order, tokens_per_step=paces.FixedTokensPerStep(steps=self.steps), token_sampling=self.token_sampling
        )


@component
class EntropyBoundedSampler(CappedSampler):
    """The EB-sampler: the longest prefix of the order with Σ H − max H ≤ γ (Ben-Hamu et al., arXiv:2505.24857)."""

    name = "entropy_bounded"
    summary = "lowest entropy first, as many per step as a bound on their joint uncertainty allows"
    refs = ("arXiv:2505.24857",)

    gamma: float = param(0.1, help="γ in nats; the higher, the fewer evaluations", ge=0)
    order: orders.Order = part("order", {"use": "uncertainty", "uncertainty": "entropy"}, help="which comes first")

    @override
    def parts(self) -> SamplerParts:
        tokens_per_step = paces.EntropyBoundedTokensPerStep(gamma=self.gamma, steps=self.steps)
        return SamplerParts(order=self.order, tokens_per_step=tokens_per_step, token_sampling=self.token_sampling)


@component
class ConfidenceThresholdSampler(CappedSampler):
    """Every position above a confidence: Fast-dLLM, in blocks, at temperature 0 (Wu et al., arXiv:2505.22618)."""

    name = "confidence_threshold"
    summary = "every position whose prediction is above a confidence, at least one per step"
    refs = ("arXiv:2505.22618",)

    threshold: float = param(0.9, help="max p_θ above which a position is filled; 1 takes one at a time", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        order = orders.UncertaintyOrder(uncertainty=ConfidenceUncertainty())
        tokens_per_step = paces.ConfidenceThresholdTokensPerStep(threshold=self.threshold, steps=self.steps)
        return SamplerParts(order=order, tokens_per_step=tokens_per_step, token_sampling=self.token_sampling)


@component
class KLASSSampler(CappedSampler):
    """Every confident, stable prediction; KLASS is in blocks, at temperature 0 (Kim et al., arXiv:2511.05664)."""

    name = "klass"
    summary = "every position with a confident prediction that no longer changes, at least one per step"
    refs = ("arXiv:2511.05664",)

    confidence_threshold: float = param(0.9, help="max p_θ above which a position is confident", ge=0, le=1)
    kl_threshold: float = param(
        0.01, help="nats; a prediction is stable if its KL divergence to the last is below", gt=0
    )
    history_length: int = param(2, help="number of consecutive evaluations over which it must be stable", ge=1)

    @override
    def parts(self) -> SamplerParts:
        order = orders.UncertaintyOrder(uncertainty=ConfidenceUncertainty())
        tokens_per_step = paces.KLStableTokensPerStep(
            confidence_threshold=self.confidence_threshold,
            kl_threshold=self.kl_threshold,
            history_length=self.history_length,
            steps=self.steps,
        )
        return SamplerParts(order=order, tokens_per_step=tokens_per_step, token_sampling=self.token_sampling)


@component
class UncertaintyGuidedSampler(TemperedSampler):
    """Order by uncertainty × importance, more positions per step the surer the model is, an early end: one metric."""

    name = "uncertainty_guided"
    summary = "order by uncertainty × importance, tokens per step that adapts, an end when little is uncertain"
    refs = ("ATAT",)

    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")
    first: Literal["most_certain", "most_uncertain"] = param("most_certain", help="which position comes first")
    importance: bool = param(True, help="multiply the uncertainty by the importance of the draft's token")
    min_steps: int = param(10, help="steps for a text that is certain throughout", ge=1)
    max_steps: int = param(100, help="steps for a text that is uncertain throughout; maximum of evaluations", ge=1)
    threshold: float = param(0.3, help="mean uncertainty below which the rest is filled; 0 never stops", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        metric = self.uncertainty
        return SamplerParts(
            order=orders.UncertaintyOrder(uncertainty=metric, first=self.first, importance=self.importance),
            tokens_per_step=paces.AdaptiveTokensPerStep(
                min_steps=self.min_steps, max_steps=self.max_steps, uncertainty=metric
            ),
            stopping_rule=stopping_rules.UncertaintyStoppingRule(threshold=self.threshold, uncertainty=metric),
            token_sampling=self.token_sampling,
        )


@component
class ConfidenceHistorySampler(CompositeSampler):
    """Stop and temperature from the running confidence (see `ConfidenceHistoryStoppingRule`), with a fixed number of
    tokens per step, in any order.
    """

    name = "confidence_history"
    summary = "temperature and early end from the confidence of the last evaluations"
    refs = ("ATAT",)

    steps: int = param(64, help="number of steps and maximum of network evaluations", ge=1)
    order: orders.Order = part("order", "random", help="which masked position comes first")
    window: int = param(5, help="evaluations that the running confidence looks back", ge=1)
    threshold: float = param(0.9, help="running confidence above which the rest is filled; 1 never stops", ge=0, le=1)
    confident_temperature: float = param(0.8, help="temperature at a running confidence of 1", gt=0)
    uncertain_temperature: float = param(1.0, help="temperature at a running confidence of 0", gt=0)

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(
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
    """The order that the estimator says; if it reads z, this is the policy that the masking `reveal` trains for."""

    name = "policy"
    summary = (
        "the order that the model's estimator has learned: easiest or hardest positions first, at any tokens per step"
    )
    refs = ("ATAT",)

    first: Literal["easy", "hard"] = param("easy", help="which positions come first")
    tokens_per_step: paces.TokensPerStep = part(
        "tokens_per_step", "fixed", help="how many positions are unmasked in a step"
    )

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(
            order=orders.ImportanceOrder(first=self.first),
            tokens_per_step=self.tokens_per_step,
            token_sampling=self.token_sampling,
        )


@component
class LearnedOrderSampler(CappedSampler):
    """The process of the adaptive bound: choose a position by ŵ, then draw its token; or, with `steps`, several."""

    name = "learned_order"
    summary = "the reverse process of the objective adaptive: a position by its learned weight, then its token"
    refs = ("arXiv:2602.02112",)

    @override
    def parts(self) -> SamplerParts:
        tokens_per_step = (
            paces.OneAtATimeTokensPerStep() if self.steps is None else paces.FixedTokensPerStep(steps=self.steps)
        )
        return SamplerParts(
            order=orders.LearnedOrder(), tokens_per_step=tokens_per_step, token_sampling=self.token_sampling
        )


@component_base
class _Reworked(SteppedSampler):
    """Ancestral sampling with remasking and nucleus draws, as published."""

    refs = ("arXiv:2503.00307",)

    top_p: float = param(0.9, help="total probability of the tokens to draw from; 1 excludes none", gt=0, le=1)

    def remasked(
        self, remasking: remaskings.Remasking, tokens_per_step: paces.TokensPerStep | None = None
    ) -> SamplerParts:
        tokens_per_step = tokens_per_step or paces.BinomialTokensPerStep(steps=self.steps, noise=LinearNoise())
        return SamplerParts(
            tokens_per_step=tokens_per_step,
            remasking=remasking,
            token_sampling=token_samplings.NucleusTokenSampling(top_p=self.top_p, temperature=self.temperature),
        )


@component
class ReMDMCapSampler(_Reworked):
    """Ancestral sampling that masks visible tokens at random, σ = min(η, σ_max) (Wang et al., arXiv:2503.00307)."""

    name = "remdm_cap"
    summary = "ancestral, and every visible token may be masked again, with a capped probability"

    eta: float = param(0.04, help="η, the cap; published are 0.04, or 0.008 with as many steps as tokens", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        return self.remasked(remaskings.ReMDMCapRemasking(eta=self.eta))


@component
class ReMDMRescaleSampler(_Reworked):
    """Ancestral sampling that masks visible tokens again at random, σ = η σ_max (Wang et al., arXiv:2503.00307)."""

    name = "remdm_rescale"
    summary = "ancestral, and every visible token may be masked again, with a share of the greatest probability"

    eta: float = param(0.015, help="η, the share of the greatest probability", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        return self.remasked(remaskings.ReMDMRescaleRemasking(eta=self.eta))


@component
class ReMDMConfSampler(_Reworked):
    """Ancestral sampling that masks unlikely tokens again; see `ReMDMConfRemasking` (Wang et al., arXiv:2503.00307)."""

    name = "remdm_conf"
    summary = "ancestral, and tokens that were drawn with little confidence may be masked again"

    eta: float = param(1.0, help="η, the share of the greatest probability", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        return self.remasked(remaskings.ReMDMConfRemasking(eta=self.eta))


@component
class ReMDMLoopSampler(_Reworked):
    """Write most of the text, rework it from `begin` to `end`, fill in the rest (Wang et al., arXiv:2503.00307)."""

    name = "remdm_loop"
    summary = "write most of a text, rework it for many steps, fill in the rest"

    eta: float = param(0.02, help="η, the probability with which a visible token is masked in a step", ge=0, le=1)
    height: float = param(0.9, help="share of visible tokens while the text is reworked", gt=0, lt=1)
    begin: float = param(0.55, help="time at which the reworking begins; time runs from 1 to 0", gt=0, lt=1)
    end: float = param(0.05, help="time at which it ends, below begin", gt=0, lt=1)

    @override
    def parts(self) -> SamplerParts:
        tokens_per_step = paces.PlateauTokensPerStep(
            steps=self.steps, height=self.height, begin=self.begin, end=self.end
        )
        return self.remasked(remaskings.ReMDMLoopRemasking(eta=self.eta), tokens_per_step)


@component
class P2Sampler(SteppedSampler):
    """Path planning: draw every mask, keep the best, new or old, by `PlannerRemasking` (Peng et al.,
    arXiv:2502.03540).
    """

    name = "p2"
    summary = "draw everywhere, keep the likeliest tokens by the model's score, new or old"
    refs = ("arXiv:2502.03540",)

    eta: float = param(1.0, help="η, weight of the log-probability of old tokens; 0 never masks one", ge=0)

    @override
    def parts(self) -> SamplerParts:
        remasking = remaskings.PlannerRemasking(eta=self.eta)
        return SamplerParts(
            tokens_per_step=paces.EverythingTokensPerStep(steps=self.steps),
            remasking=remasking,
            token_sampling=self.token_sampling,
        )


def fitting(
    experiment: Experiment, steps: Sequence[int], rows: Sequence[Row] | None = None
) -> tuple[list[Row], dict[str, str]]:
    """Return the samplers that fit an experiment, the reference with the most steps first; and why others do not.

    They are those of `rows`, or, if None, all named ones at each number of `steps`, in ascending order. One that fits
    only as the experiment has set it is taken as that.
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
    """Return a sampler at each number of steps; once, unchanged, if it has no such parameter."""
    zoo = Zoo.load()
    parameters, spec = zoo.describe("sampler", name).parameters, zoo.spec("sampler", name)
    cap = next((key for key in ("steps", "max_steps") if key in parameters), None)
    if cap is None:
        return [(name, None, spec)]
    tables: list[dict[str, Any]] = [{"use": name, cap: n} for n in steps]
    if "min_steps" in parameters:
        tables = [table | {"min_steps": min(spec.min_steps, table[cap])} for table in tables]
    return [(name, table[cap], zoo.spec("sampler", table)) for table in tables]
