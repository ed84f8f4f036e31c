"""Combinations that several published samplers share but for one part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atat_zoo.registry import component, param, part
from atat_zoo.samplers.parts import check_parts, fill

if TYPE_CHECKING:
    from atat_zoo.noise import Noise
    from atat_zoo.samplers.draw import Draw
    from atat_zoo.samplers.order import Order
    from atat_zoo.samplers.pace import Pace
    from atat_zoo.samplers.parts import Parts
    from atat_zoo.samplers.remask import Remask
    from atat_zoo.samplers.stop import Stop
    from atat_zoo.uncertainty import Uncertainty


def reworked(remask: Remask, *, steps: int, p: float, temperature: float) -> Parts:
    """Return ancestral sampling in `steps` with a remask and nucleus draws: ReMDM (Wang et al., arXiv:2503.00307)."""
    from atat_zoo.noise import LinearNoise
    from atat_zoo.samplers.draw import NucleusDraw
    from atat_zoo.samplers.order import RandomOrder
    from atat_zoo.samplers.pace import BinomialPace
    from atat_zoo.samplers.parts import Parts
    from atat_zoo.samplers.stop import StepsStop

    return Parts(
        order=RandomOrder(),
        pace=BinomialPace(steps=steps, noise=LinearNoise()),
        remask=remask,
        stop=StepsStop(),
        draw=NucleusDraw(p=p, temperature=temperature),
    )


def most_certain_first(metric: Uncertainty, *, steps: int, temperature: float) -> Parts:
    """Return evenly many positions a step, those with the lowest uncertainty first."""
    from atat_zoo.samplers.draw import CategoricalDraw
    from atat_zoo.samplers.order import UncertaintyOrder
    from atat_zoo.samplers.pace import FixedPace
    from atat_zoo.samplers.parts import Parts
    from atat_zoo.samplers.remask import NoRemask
    from atat_zoo.samplers.stop import StepsStop

    return Parts(
        order=UncertaintyOrder(uncertainty=metric),
        pace=FixedPace(steps=steps),
        remask=NoRemask(),
        stop=StepsStop(),
        draw=CategoricalDraw(temperature=temperature),
    )


@component
class AncestralSampler:
    """The reversed process of uniform masking on a grid of times (Sahoo et al., arXiv:2406.07524).

    Random order, binomial pace with a mask rate that falls evenly. How many tokens a step unmasks is drawn
    before the network is asked, so a step that unmasks none costs nothing; the published variants with and
    without a cache have the same distribution.
    """

    name = "ancestral"
    summary = "the reversed process of uniform masking, on a grid of times"
    refs = ("arXiv:2406.07524",)

    steps: int = param(64, help="T, steps of the time grid, and the most network evaluations", ge=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.noise import LinearNoise
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import RandomOrder
        from atat_zoo.samplers.pace import BinomialPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=RandomOrder(),
            pace=BinomialPace(steps=self.steps, noise=LinearNoise()),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    sample = fill


@component
class LeftToRightSampler:
    """The leftmost masked position, one at a time, as an autoregressive model writes.

    The only way that objectives with a causal model allow (`autoregressive`, `block`), and one of many for the others:
    with an exact denoiser it is exact. It costs one network evaluation a token.
    """

    name = "left_to_right"
    summary = "the leftmost masked position, one at a time: what autoregressive and block models need"
    refs = ()

    draw: Draw = part("draw", "categorical", help="from log-probabilities to a token")

    @property
    def causal(self) -> bool:
        """Whether nothing is asked of the denoiser but the leftmost mask: unless the draw reads the other ones."""
        return self.parts().causal

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.order import LeftToRightOrder
        from atat_zoo.samplers.pace import OneAtATimePace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=LeftToRightOrder(), pace=OneAtATimePace(), remask=NoRemask(), stop=StepsStop(), draw=self.draw
        )

    sample = fill


@component
class CombinationSampler:
    """Any order, pace, remask, stop and draw, each named in its own table; the defaults are `ancestral`."""

    name = "combination"
    summary = "any order, pace, remask, stop and draw, each named by itself"
    refs = ()

    order: Order = part("order", "random", help="which masked position comes first")
    pace: Pace = part("pace", "binomial", help="how many positions are unmasked in a step")
    remask: Remask = part("remask", "none", help="which drawn tokens are masked again")
    stop: Stop = part("stop", "steps", help="when the rest is filled in one draw")
    draw: Draw = part("draw", "categorical", help="from log-probabilities to a token")

    @property
    def causal(self) -> bool:
        """Whether the leftmost mask is always filled alone: `left_to_right`, `one_at_a_time`, nothing undone."""
        return self.parts().causal

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.parts import Parts

        return Parts(order=self.order, pace=self.pace, remask=self.remask, stop=self.stop, draw=self.draw)

    check = check_parts
    sample = fill


@component
class FirstHittingSampler:
    """The reversed process of uniform masking without a grid of times: one token at each time at which it unmasks one.

    Ancestral sampling in infinitely many steps, for as many evaluations as there are tokens: with an exact denoiser it
    is exact. With `steps`, several tokens share a time, evenly many in each step (Zheng et al., arXiv:2409.02908).
    """

    name = "first_hitting"
    summary = "the reversed process of uniform masking, one token at each of its times"
    refs = ("arXiv:2409.02908",)

    steps: int | None = param(
        None, help="the most network evaluations, several tokens in each; without it one a token", ge=1
    )
    noise: Noise = part("noise", "linear", help="of the model; for one that reads the time")
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import RandomOrder
        from atat_zoo.samplers.pace import FirstHittingPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=RandomOrder(),
            pace=FirstHittingPace(steps=self.steps, noise=self.noise),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class MaskGITSampler:
    """Draw a token everywhere, keep the likeliest, few at first and many at the end.

    The order `drawn_probability` with Gumbel noise that falls to zero, the pace `cosine` (Chang et al.,
    arXiv:2202.04200, whose published noise is 4.5). Also known as top probability. It writes likelier and less diverse
    text than the model has learned, and is not exact however many steps it takes.
    """

    name = "maskgit"
    summary = "draw everywhere, keep the likeliest: few positions at first, many at the end"
    refs = ("arXiv:2202.04200",)

    steps: int = param(64, help="T, steps, and the most network evaluations", ge=1)
    choice_temperature: float = param(
        4.5, help="of the Gumbel noise on the log-probability, which falls linearly with the steps; 0 for none", ge=0
    )
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import DrawnProbabilityOrder
        from atat_zoo.samplers.pace import CosinePace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=DrawnProbabilityOrder(choice_temperature=self.choice_temperature),
            pace=CosinePace(steps=self.steps),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class MarginSampler:
    """The position with the largest margin between its two likeliest tokens first, evenly many a step.

    Kim et al., arXiv:2502.06768. The order is fixed before the draw, so one at a time it is exact with an exact
    denoiser; several at a time it lowers diversity.
    """

    name = "margin"
    summary = "largest margin between the two likeliest tokens first, evenly many a step"
    refs = ("arXiv:2502.06768",)

    steps: int = param(64, help="steps, and the most network evaluations", ge=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        # merged
        from atat_zoo.uncertainty import MarginUncertainty

        return most_certain_first(MarginUncertainty(), steps=self.steps, temperature=self.temperature)

    check = check_parts
    sample = fill


@component
class EntropySampler:
    """The position with the lowest entropy first, evenly many a step.

    As in Dream (Ye et al., arXiv:2508.15487). The order is fixed before the draw, so one at a time it is exact with an
    exact denoiser; several at a time it lowers diversity.
    """

    name = "entropy"
    summary = "lowest entropy first, evenly many a step"
    refs = ("arXiv:2508.15487",)

    steps: int = param(64, help="steps, and the most network evaluations", ge=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        # merged
        from atat_zoo.uncertainty import EntropyUncertainty

        return most_certain_first(EntropyUncertainty(), steps=self.steps, temperature=self.temperature)

    check = check_parts
    sample = fill


@component
class EntropyBoundedSampler:
    """Lowest entropy first, as many a step as keep what is lost by drawing them together within a bound.

    The EB-sampler: the longest beginning of the order with Σ H − max H ≤ γ (Ben-Hamu et al., arXiv:2505.24857).
    """

    name = "entropy_bounded"
    summary = "lowest entropy first, as many a step as keep their joint uncertainty within a bound"
    refs = ("arXiv:2505.24857",)

    gamma: float = param(0.1, help="γ in nats; the higher, the fewer evaluations", ge=0)
    order: Order = part(
        "order", {"use": "uncertainty", "uncertainty": "entropy"}, help="which masked position comes first"
    )
    steps: int | None = param(
        None, help="the most network evaluations, which sets a least number a step; without it one a token", ge=1
    )
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.pace import EntropyBoundedPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=self.order,
            pace=EntropyBoundedPace(gamma=self.gamma, steps=self.steps),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class ConfidenceThresholdSampler:
    """Every position whose prediction is above a confidence, at least one a step.

    The parallel decoding of Fast-dLLM (Wu et al., arXiv:2505.22618), there in blocks and with the most probable token,
    which is `temperature = 0`.
    """

    name = "confidence_threshold"
    summary = "every position whose prediction is above a confidence, at least one a step"
    refs = ("arXiv:2505.22618",)

    threshold: float = param(0.9, help="max p_θ above which a position is filled; 1 takes one at a time", ge=0, le=1)
    steps: int | None = param(
        None, help="the most network evaluations, which sets a least number a step; without it one a token", ge=1
    )
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import UncertaintyOrder
        from atat_zoo.samplers.pace import ConfidenceThresholdPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop
        from atat_zoo.uncertainty import ConfidenceUncertainty

        return Parts(
            order=UncertaintyOrder(uncertainty=ConfidenceUncertainty()),
            pace=ConfidenceThresholdPace(threshold=self.threshold, steps=self.steps),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class KLASSSampler:
    """Every position that is confident and whose prediction has stopped moving, at least one a step.

    Kim et al., arXiv:2511.05664, there in blocks and with the most probable token, which is `temperature = 0`.
    """

    name = "klass"
    summary = "every position that is confident and whose prediction no longer moves, at least one a step"
    refs = ("arXiv:2511.05664",)

    confidence: float = param(0.9, help="max p_θ above which a position is confident", ge=0, le=1)
    kl: float = param(0.01, help="nats below which a prediction has kept still between two evaluations", gt=0)
    history: int = param(2, help="evaluations in a row for which it must have kept still", ge=1)
    steps: int | None = param(
        None, help="the most network evaluations, which sets a least number a step; without it one a token", ge=1
    )
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import UncertaintyOrder
        from atat_zoo.samplers.pace import KLStablePace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop
        from atat_zoo.uncertainty import ConfidenceUncertainty

        return Parts(
            order=UncertaintyOrder(uncertainty=ConfidenceUncertainty()),
            pace=KLStablePace(confidence=self.confidence, kl=self.kl, history=self.history, steps=self.steps),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class UncertaintyGuidedSampler:
    """Order by uncertainty × importance, more positions a step the surer the model is, an early end.

    The order is `uncertainty`, the pace `adaptive`, the stop `uncertainty`, all by the same metric. Most
    certain first is the default, because most uncertain first has no published evidence and writes the worst
    predictions while least is known.
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
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def __attrs_post_init__(self) -> None:
        """Refuse bounds in the wrong order."""
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps must be at least min_steps, {self.min_steps}, not {self.max_steps}")

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import UncertaintyOrder
        from atat_zoo.samplers.pace import AdaptivePace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import UncertaintyStop

        metric = self.uncertainty
        return Parts(
            order=UncertaintyOrder(uncertainty=metric, first=self.first, importance=self.importance),
            pace=AdaptivePace(min_steps=self.min_steps, max_steps=self.max_steps, uncertainty=metric),
            remask=NoRemask(),
            stop=UncertaintyStop(threshold=self.threshold, uncertainty=metric),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    sample = fill


@component
class ConfidenceHistorySampler:
    """Stop and temperature from the running confidence, at a fixed pace and in any order.

    The running confidence is the mean over the last `window` evaluations of the mean of max p_θ over what is
    masked: the draw cools as it rises, and above the threshold the rest is filled.
    """

    name = "confidence_history"
    summary = "temperature and early end from the confidence of the last evaluations"
    refs = ("ATAT",)

    steps: int = param(64, help="steps, and the most network evaluations", ge=1)
    order: Order = part("order", "random", help="which masked position comes first")
    window: int = param(5, help="evaluations that the running confidence looks back", ge=1)
    threshold: float = param(0.9, help="running confidence above which the rest is filled; 1 never stops", ge=0, le=1)
    sure: float = param(0.8, help="temperature at a running confidence of 1", gt=0)
    unsure: float = param(1.0, help="temperature at a running confidence of 0", gt=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import ConfidenceTemperedDraw
        from atat_zoo.samplers.pace import FixedPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import ConfidenceHistoryStop

        return Parts(
            order=self.order,
            pace=FixedPace(steps=self.steps),
            remask=NoRemask(),
            stop=ConfidenceHistoryStop(window=self.window, threshold=self.threshold),
            draw=ConfidenceTemperedDraw(sure=self.sure, unsure=self.unsure, window=self.window),
        )

    check = check_parts
    sample = fill


@component
class LearnedOrderSampler:
    """The reverse process that the objective `adaptive` learns: choose a position by ŵ, then draw its token.

    One position a step is the process of the adaptive bound; with fewer steps than positions several are chosen at
    once, without replacement, and drawn independently.
    """

    name = "learned_order"
    summary = "the reverse process of the objective adaptive: a position by its learned weight, then its token"
    refs = ("arXiv:2602.02112",)

    steps: int | None = param(
        None, help="steps, and the most network evaluations; without it one position a step", ge=1
    )
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import LearnedOrder
        from atat_zoo.samplers.pace import FixedPace, OneAtATimePace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import NoRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=LearnedOrder(),
            pace=OneAtATimePace() if self.steps is None else FixedPace(steps=self.steps),
            remask=NoRemask(),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class ReMDMCapSampler:
    """Ancestral sampling that hides visible tokens again by chance, σ = min(η, σ_max).

    Wang et al., arXiv:2503.00307. The share of masked tokens follows the grid as without remasking, and a step
    in which nothing is unmasked costs no evaluation. Published with nucleus draws of p = 0.9, which are the default;
    p = 1 draws from the whole distribution.
    """

    name = "remdm_cap"
    summary = "ancestral, and every visible token may be hidden again, with a capped probability"
    refs = ("arXiv:2503.00307",)

    steps: int = param(64, help="T, steps, and the most network evaluations", ge=1)
    eta: float = param(0.04, help="η, the cap; published are 0.04, or 0.008 with as many steps as tokens", ge=0, le=1)
    p: float = param(0.9, help="probability that the tokens drawn from have together; 1 cuts nothing off", gt=0, le=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.remask import ReMDMCapRemask
        # merged

        return reworked(ReMDMCapRemask(eta=self.eta), steps=self.steps, p=self.p, temperature=self.temperature)

    check = check_parts
    sample = fill


@component
class ReMDMRescaleSampler:
    """Ancestral sampling that hides visible tokens again by chance, σ = η σ_max.

    Wang et al., arXiv:2503.00307. Published with nucleus draws of p = 0.9, which are the default; p = 1 draws from the
    whole distribution.
    """

    name = "remdm_rescale"
    summary = "ancestral, and every visible token may be hidden again, with a share of the greatest probability"
    refs = ("arXiv:2503.00307",)

    steps: int = param(64, help="T, steps, and the most network evaluations", ge=1)
    eta: float = param(0.015, help="η, the share of the greatest probability", ge=0, le=1)
    p: float = param(0.9, help="probability that the tokens drawn from have together; 1 cuts nothing off", gt=0, le=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.remask import ReMDMRescaleRemask
        # merged

        return reworked(ReMDMRescaleRemask(eta=self.eta), steps=self.steps, p=self.p, temperature=self.temperature)

    check = check_parts
    sample = fill


@component
class ReMDMConfSampler:
    """Ancestral sampling that hides unlikely tokens again, σ_i = η σ_max · softmax(−ψ)_i.

    ψ_i is the probability that token i had when it was drawn (Wang et al., arXiv:2503.00307). Published with nucleus
    draws of p = 0.9, which are the default; p = 1 draws from the whole distribution.
    """

    name = "remdm_conf"
    summary = "ancestral, and tokens that were drawn with little confidence may be hidden again"
    refs = ("arXiv:2503.00307",)

    steps: int = param(64, help="T, steps, and the most network evaluations", ge=1)
    eta: float = param(1.0, help="η, the share of the greatest probability", ge=0, le=1)
    p: float = param(0.9, help="probability that the tokens drawn from have together; 1 cuts nothing off", gt=0, le=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.remask import ReMDMConfRemask
        # merged

        return reworked(ReMDMConfRemask(eta=self.eta), steps=self.steps, p=self.p, temperature=self.temperature)

    check = check_parts
    sample = fill


@component
class ReMDMLoopSampler:
    """Write most of the text, rework it at a constant share of masked tokens, fill in the rest.

    Wang et al., arXiv:2503.00307: from `begin` to `end` α stays at `height`, while each step hides visible tokens with
    probability η and unmasks as many. Published with nucleus draws of p = 0.9, which are the default; p = 1 draws from
    the whole distribution.
    """

    name = "remdm_loop"
    summary = "write most of a text, rework it for many steps, fill in the rest"
    refs = ("arXiv:2503.00307",)

    steps: int = param(64, help="T, steps, and the most network evaluations", ge=1)
    eta: float = param(0.02, help="η, the probability with which a visible token is hidden in a step", ge=0, le=1)
    height: float = param(0.9, help="share of tokens that are visible while the text is reworked", gt=0, lt=1)
    begin: float = param(0.55, help="time at which the reworking begins; time runs from 1 to 0", gt=0, lt=1)
    end: float = param(0.05, help="time at which it ends, below begin", gt=0, lt=1)
    p: float = param(0.9, help="probability that the tokens drawn from have together; 1 cuts nothing off", gt=0, le=1)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def __attrs_post_init__(self) -> None:
        """Refuse an end before the beginning."""
        if self.end >= self.begin:
            raise ValueError(f"end must be less than begin, {self.begin}, not {self.end}; time runs from 1 to 0")

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import NucleusDraw
        from atat_zoo.samplers.order import RandomOrder
        from atat_zoo.samplers.pace import PlateauPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import ReMDMLoopRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=RandomOrder(),
            pace=PlateauPace(steps=self.steps, height=self.height, begin=self.begin, end=self.end),
            remask=ReMDMLoopRemask(eta=self.eta),
            stop=StepsStop(),
            draw=NucleusDraw(p=self.p, temperature=self.temperature),
        )

    check = check_parts
    sample = fill


@component
class P2Sampler:
    """Path planning: draw a token for every mask, then keep the best of new and old.

    The score of a token is its log-probability by the model itself; those that were there before are asked about in
    the same evaluation, and weigh by η (self-planning of Peng et al., arXiv:2502.03540). It needs a model that reads
    both sides and predicts every position.
    """

    name = "p2"
    summary = "draw everywhere, keep the best of new and old tokens by the model's own opinion"
    refs = ("arXiv:2502.03540",)

    steps: int = param(64, help="T, steps, and the most network evaluations", ge=1)
    eta: float = param(1.0, help="η, weight of the log-probability of old tokens; 0 keeps them all", ge=0)
    temperature: float = param(1.0, help="of the draw; 0 takes the most probable token", ge=0)

    def parts(self) -> Parts:
        """Return the combination."""
        from atat_zoo.samplers.draw import CategoricalDraw
        from atat_zoo.samplers.order import RandomOrder
        from atat_zoo.samplers.pace import EverythingPace
        from atat_zoo.samplers.parts import Parts
        from atat_zoo.samplers.remask import PlannerRemask
        from atat_zoo.samplers.stop import StepsStop

        return Parts(
            order=RandomOrder(),
            pace=EverythingPace(steps=self.steps),
            remask=PlannerRemask(eta=self.eta),
            stop=StepsStop(),
            draw=CategoricalDraw(temperature=self.temperature),
        )

    check = check_parts
    sample = fill
