"""The samplers that were published: name, reference, parameters, and the parts that each is made of.

A part that is not named is the default of `SamplerParts`: random order, no remask, no early stop, an exact draw.
"""

from __future__ import annotations

from typing import Literal

from atat_zoo.noise import LinearNoise, Noise
from atat_zoo.registry import component, component_base, param, part
from atat_zoo.samplers import draw as draws
from atat_zoo.samplers import order as orders
from atat_zoo.samplers import pace as paces
from atat_zoo.samplers import remask as remasks
from atat_zoo.samplers import stop as stops
from atat_zoo.samplers.pace import predicted
from atat_zoo.samplers.parts import CappedSampler, CompositeSampler, SamplerParts, SteppedSampler, TemperedSampler
from atat_zoo.uncertainty import ConfidenceUncertainty, EntropyUncertainty, MarginUncertainty, Uncertainty


@component_base
class _Reworked(SteppedSampler):
    """Ancestral sampling that hides tokens again, with nucleus draws as published."""

    refs = ("arXiv:2503.00307",)

    p: float = param(0.9, help="probability that the tokens drawn from have together; 1 cuts nothing off", gt=0, le=1)

    @property
    def pace(self) -> paces.Pace:
        return paces.BinomialPace(steps=self.steps, noise=LinearNoise())

    @property
    def draw(self) -> draws.Draw:
        return draws.NucleusDraw(p=self.p, temperature=self.temperature)


@component
class AncestralSampler(SteppedSampler):
    """The reversed process of uniform masking on a grid of times (Sahoo et al., arXiv:2406.07524).

    The mask rate falls evenly. How many tokens a step unmasks is drawn before the network is asked, so a step that
    unmasks none costs nothing; the published variants with and without a cache have the same distribution.
    """

    name = "ancestral"
    summary = "the reversed process of uniform masking, on a grid of times"
    refs = ("arXiv:2406.07524",)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(pace=paces.BinomialPace(steps=self.steps, noise=LinearNoise()), draw=self.draw)


@component
class LeftToRightSampler(CompositeSampler):
    """The leftmost masked position, one at a time, as an autoregressive model writes.

    The only way that objectives with a causal model allow (`autoregressive`, `block`), and one of many for the others:
    with an exact denoiser it is exact. It costs one network evaluation a token.
    """

    name = "left_to_right"
    summary = "the leftmost masked position, one at a time: what autoregressive and block models need"

    draw: draws.Draw = part("draw", "categorical", help="from log-probabilities to a token")

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(order=orders.LeftToRightOrder(), pace=paces.OneAtATimePace(), draw=self.draw)


@component
class CombinationSampler(CompositeSampler):
    """Any order, pace, remask, stop and draw, each named in its own table; the defaults are `ancestral`."""

    name = "combination"
    summary = "any order, pace, remask, stop and draw, each named by itself"

    order: orders.Order = part("order", "random", help="which masked position comes first")
    pace: paces.Pace = part("pace", "binomial", help="how many positions are unmasked in a step")
    remask: remasks.Remask = part("remask", "none", help="which drawn tokens are masked again")
    stop: stops.Stop = part("stop", "steps", help="when the rest is filled in one draw")
    draw: draws.Draw = part("draw", "categorical", help="from log-probabilities to a token")

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(order=self.order, pace=self.pace, remask=self.remask, stop=self.stop, draw=self.draw)


@component
class FirstHittingSampler(CappedSampler):
    """The reversed process of uniform masking without a grid of times: one token at each time at which it unmasks one.

    Ancestral sampling in infinitely many steps, for as many evaluations as there are tokens: with an exact denoiser it
    is exact. With `steps`, several tokens share a time, evenly many in each step (Zheng et al., arXiv:2409.02908).
    """

    name = "first_hitting"
    summary = "the reversed process of uniform masking, one token at each of its times"
    refs = ("arXiv:2409.02908",)

    noise: Noise = part("noise", "linear", help="of the model; for one that reads the time")

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(pace=paces.FirstHittingPace(steps=self.steps, noise=self.noise), draw=self.draw)


@component
class MaskGITSampler(SteppedSampler):
    """Draw a token everywhere, keep the likeliest, few at first and many at the end (Chang et al., arXiv:2202.04200).

    Also known as top probability; the published noise is 4.5. It writes likelier and less diverse text than the model
    has learned, and is not exact however many steps it takes.
    """

    name = "maskgit"
    summary = "draw everywhere, keep the likeliest: few positions at first, many at the end"
    refs = ("arXiv:2202.04200",)

    choice_temperature: float = param(4.5, help="of the Gumbel noise on the order, which falls to 0; 0 for none", ge=0)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        order = orders.DrawnProbabilityOrder(choice_temperature=self.choice_temperature)
        return SamplerParts(order=order, pace=paces.CosinePace(steps=self.steps), draw=self.draw)


@component
class MarginSampler(SteppedSampler):
    """The position with the largest margin between its two likeliest tokens first, evenly many a step.

    Kim et al., arXiv:2502.06768. The order is fixed before the draw, so one at a time it is exact with an exact
    denoiser; several at a time it lowers diversity.
    """

    name = "margin"
    summary = "largest margin between the two likeliest tokens first, evenly many a step"
    refs = ("arXiv:2502.06768",)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        order = orders.UncertaintyOrder(uncertainty=MarginUncertainty())
        return SamplerParts(order=order, pace=paces.FixedPace(steps=self.steps), draw=self.draw)


@component
class EntropySampler(SteppedSampler):
    """The position with the lowest entropy first, as in Dream (Ye et al., arXiv:2508.15487); else as `margin`."""

    name = "entropy"
    summary = "lowest entropy first, evenly many a step"
    refs = ("arXiv:2508.15487",)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        order = orders.UncertaintyOrder(uncertainty=EntropyUncertainty())
        return SamplerParts(order=order, pace=paces.FixedPace(steps=self.steps), draw=self.draw)


@component
class EntropyBoundedSampler(CappedSampler):
    """The EB-sampler: the longest beginning of the order with Σ H − max H ≤ γ (Ben-Hamu et al., arXiv:2505.24857)."""

    name = "entropy_bounded"
    summary = "lowest entropy first, as many a step as keep their joint uncertainty within a bound"
    refs = ("arXiv:2505.24857",)

    gamma: float = param(0.1, help="γ in nats; the higher, the fewer evaluations", ge=0)
    order: orders.Order = part("order", {"use": "uncertainty", "uncertainty": "entropy"}, help="which comes first")

    def parts(self) -> SamplerParts:
        """Return the combination."""
        pace = predicted.EntropyBoundedPace(gamma=self.gamma, steps=self.steps)
        return SamplerParts(order=self.order, pace=pace, draw=self.draw)


@component
class ConfidenceThresholdSampler(CappedSampler):
    """Every position whose prediction is above a confidence, at least one a step.

    The parallel decoding of Fast-dLLM (Wu et al., arXiv:2505.22618), there in blocks and with the most probable token,
    which is `temperature = 0`.
    """

    name = "confidence_threshold"
    summary = "every position whose prediction is above a confidence, at least one a step"
    refs = ("arXiv:2505.22618",)

    threshold: float = param(0.9, help="max p_θ above which a position is filled; 1 takes one at a time", ge=0, le=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        order = orders.UncertaintyOrder(uncertainty=ConfidenceUncertainty())
        pace = predicted.ConfidenceThresholdPace(threshold=self.threshold, steps=self.steps)
        return SamplerParts(order=order, pace=pace, draw=self.draw)


@component
class KLASSSampler(CappedSampler):
    """Every position that is confident and whose prediction has stopped moving, at least one a step.

    Kim et al., arXiv:2511.05664, there in blocks and with the most probable token, which is `temperature = 0`.
    """

    name = "klass"
    summary = "every position that is confident and whose prediction no longer moves, at least one a step"
    refs = ("arXiv:2511.05664",)

    confidence: float = param(0.9, help="max p_θ above which a position is confident", ge=0, le=1)
    kl: float = param(0.01, help="nats below which a prediction has stayed the same between two evaluations", gt=0)
    history: int = param(2, help="evaluations in a row for which it must have stayed the same", ge=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        order = orders.UncertaintyOrder(uncertainty=ConfidenceUncertainty())
        pace = predicted.KLStablePace(confidence=self.confidence, kl=self.kl, history=self.history, steps=self.steps)
        return SamplerParts(order=order, pace=pace, draw=self.draw)


@component
class UncertaintyGuidedSampler(TemperedSampler):
    """Order by uncertainty × importance, more positions a step the surer the model is, an early end.

    All three go by the same metric. Most certain first is the default, because most uncertain first has no published
    evidence and writes the worst predictions while least is known.
    """

    name = "uncertainty_guided"
    summary = "order by uncertainty × importance, a pace that adapts, an end when little is uncertain"
    refs = ("ATAT",)

    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")
    first: Literal["most_certain", "most_uncertain"] = param("most_certain", help="which position comes first")
    importance: bool = param(True, help="multiply the uncertainty by the importance of the draft's token")
    min_steps: int = param(10, help="steps for a text that is certain throughout", ge=1)
    max_steps: int = param(100, help="steps for a text that is uncertain throughout, and the most evaluations", ge=1)
    threshold: float = param(0.3, help="mean uncertainty below which the rest is filled; 0 never stops", ge=0, le=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        metric = self.uncertainty
        return SamplerParts(
            order=orders.UncertaintyOrder(uncertainty=metric, first=self.first, importance=self.importance),
            pace=predicted.AdaptivePace(min_steps=self.min_steps, max_steps=self.max_steps, uncertainty=metric),
            stop=stops.UncertaintyStop(threshold=self.threshold, uncertainty=metric),
            draw=self.draw,
        )


@component
class ConfidenceHistorySampler(CompositeSampler):
    """Stop and temperature from the running confidence, at a fixed pace and in any order; see `ConfidenceHistoryStop`.

    The draw cools as the running confidence rises, and above the threshold the rest is filled.
    """

    name = "confidence_history"
    summary = "temperature and early end from the confidence of the last evaluations"
    refs = ("ATAT",)

    steps: int = param(64, help="steps, and the most network evaluations", ge=1)
    order: orders.Order = part("order", "random", help="which masked position comes first")
    window: int = param(5, help="evaluations that the running confidence looks back", ge=1)
    threshold: float = param(0.9, help="running confidence above which the rest is filled; 1 never stops", ge=0, le=1)
    sure: float = param(0.8, help="temperature at a running confidence of 1", gt=0)
    unsure: float = param(1.0, help="temperature at a running confidence of 0", gt=0)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(
            order=self.order,
            pace=paces.FixedPace(steps=self.steps),
            stop=stops.ConfidenceHistoryStop(window=self.window, threshold=self.threshold),
            draw=draws.ConfidenceTemperedDraw(sure=self.sure, unsure=self.unsure, window=self.window),
        )


@component
class LearnedOrderSampler(CappedSampler):
    """The reverse process that the objective `adaptive` learns: choose a position by ŵ, then draw its token.

    One a step is the process of the adaptive bound; in fewer steps, several are chosen at once, without replacement.
    """

    name = "learned_order"
    summary = "the reverse process of the objective adaptive: a position by its learned weight, then its token"
    refs = ("arXiv:2602.02112",)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        pace = paces.OneAtATimePace() if self.steps is None else paces.FixedPace(steps=self.steps)
        return SamplerParts(order=orders.LearnedOrder(), pace=pace, draw=self.draw)


@component
class ReMDMCapSampler(_Reworked):
    """Ancestral sampling that hides visible tokens again by chance, σ = min(η, σ_max) (Wang et al., arXiv:2503.00307).

    The share of masked tokens follows the grid as without remasking.
    """

    name = "remdm_cap"
    summary = "ancestral, and every visible token may be hidden again, with a capped probability"

    eta: float = param(0.04, help="η, the cap; published are 0.04, or 0.008 with as many steps as tokens", ge=0, le=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(pace=self.pace, remask=remasks.ReMDMCapRemask(eta=self.eta), draw=self.draw)


@component
class ReMDMRescaleSampler(_Reworked):
    """Ancestral sampling that hides visible tokens again by chance, σ = η σ_max (Wang et al., arXiv:2503.00307)."""

    name = "remdm_rescale"
    summary = "ancestral, and every visible token may be hidden again, with a share of the greatest probability"

    eta: float = param(0.015, help="η, the share of the greatest probability", ge=0, le=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(pace=self.pace, remask=remasks.ReMDMRescaleRemask(eta=self.eta), draw=self.draw)


@component
class ReMDMConfSampler(_Reworked):
    """Ancestral sampling that hides unlikely tokens again; see `ReMDMConfRemask` (Wang et al., arXiv:2503.00307)."""

    name = "remdm_conf"
    summary = "ancestral, and tokens that were drawn with little confidence may be hidden again"

    eta: float = param(1.0, help="η, the share of the greatest probability", ge=0, le=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        return SamplerParts(pace=self.pace, remask=remasks.ReMDMConfRemask(eta=self.eta), draw=self.draw)


@component
class ReMDMLoopSampler(_Reworked):
    """Write most of the text, rework it from `begin` to `end`, fill in the rest (Wang et al., arXiv:2503.00307)."""

    name = "remdm_loop"
    summary = "write most of a text, rework it for many steps, fill in the rest"

    eta: float = param(0.02, help="η, the probability with which a visible token is hidden in a step", ge=0, le=1)
    height: float = param(0.9, help="share of tokens that are visible while the text is reworked", gt=0, lt=1)
    begin: float = param(0.55, help="time at which the reworking begins; time runs from 1 to 0", gt=0, lt=1)
    end: float = param(0.05, help="time at which it ends, below begin", gt=0, lt=1)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        pace = paces.PlateauPace(steps=self.steps, height=self.height, begin=self.begin, end=self.end)
        return SamplerParts(pace=pace, remask=remasks.ReMDMLoopRemask(eta=self.eta), draw=self.draw)


@component
class P2Sampler(SteppedSampler):
    """Path planning: draw a token for every mask, then retain the best of new and old; see `PlannerRemask`.

    Peng et al., arXiv:2502.03540. It needs a model that reads both sides and predicts every position.
    """

    name = "p2"
    summary = "draw everywhere, retain the new and old tokens that the model finds likeliest"
    refs = ("arXiv:2502.03540",)

    eta: float = param(1.0, help="η, weight of the log-probability of old tokens; 0 keeps them all", ge=0)

    def parts(self) -> SamplerParts:
        """Return the combination."""
        remask = remasks.PlannerRemask(eta=self.eta)
        return SamplerParts(pace=paces.EverythingPace(steps=self.steps), remask=remask, draw=self.draw)
