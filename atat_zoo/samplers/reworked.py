"""The published samplers that mask drawn tokens again; see `atat_zoo.samplers.published`."""

from __future__ import annotations

from typing_extensions import override

from atat_zoo.noise import LinearNoise
from atat_zoo.registry import component, component_base, param
from atat_zoo.samplers import draw as draws
from atat_zoo.samplers import pace as paces
from atat_zoo.samplers import remask as remasks
from atat_zoo.samplers.parts import SamplerParts, SteppedSampler


@component_base
class _Reworked(SteppedSampler):
    """Ancestral sampling with a remask and nucleus draws, as published."""

    refs = ("arXiv:2503.00307",)

    p: float = param(0.9, help="total probability of the tokens to draw from; 1 excludes none", gt=0, le=1)

    @property
    def pace(self) -> paces.Pace:
        return paces.BinomialPace(steps=self.steps, noise=LinearNoise())

    @property
    def draw(self) -> draws.Draw:
        return draws.NucleusDraw(p=self.p, temperature=self.temperature)


@component
class ReMDMCapSampler(_Reworked):
    """Ancestral sampling that masks visible tokens at random, σ = min(η, σ_max) (Wang et al., arXiv:2503.00307).

    The share of masked tokens follows the grid, as without a remask.
    """

    name = "remdm_cap"
    summary = "ancestral, and every visible token may be masked again, with a capped probability"

    eta: float = param(0.04, help="η, the cap; published are 0.04, or 0.008 with as many steps as tokens", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(pace=self.pace, remask=remasks.ReMDMCapRemask(eta=self.eta), draw=self.draw)


@component
class ReMDMRescaleSampler(_Reworked):
    """Ancestral sampling that masks visible tokens again at random, σ = η σ_max (Wang et al., arXiv:2503.00307)."""

    name = "remdm_rescale"
    summary = "ancestral, and every visible token may be masked again, with a share of the greatest probability"

    eta: float = param(0.015, help="η, the share of the greatest probability", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(pace=self.pace, remask=remasks.ReMDMRescaleRemask(eta=self.eta), draw=self.draw)


@component
class ReMDMConfSampler(_Reworked):
    """Ancestral sampling that masks unlikely tokens again; see `ReMDMConfRemask` (Wang et al., arXiv:2503.00307)."""

    name = "remdm_conf"
    summary = "ancestral, and tokens that were drawn with little confidence may be masked again"

    eta: float = param(1.0, help="η, the share of the greatest probability", ge=0, le=1)

    @override
    def parts(self) -> SamplerParts:
        return SamplerParts(pace=self.pace, remask=remasks.ReMDMConfRemask(eta=self.eta), draw=self.draw)


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
        pace = paces.PlateauPace(steps=self.steps, height=self.height, begin=self.begin, end=self.end)
        return SamplerParts(pace=pace, remask=remasks.ReMDMLoopRemask(eta=self.eta), draw=self.draw)


@component
class P2Sampler(SteppedSampler):
    """Path planning: draw a token for every mask, then keep the best, new or old; see `PlannerRemask`.

    Peng et al., arXiv:2502.03540. It needs a model that reads both sides and predicts every position.
    """

    name = "p2"
    summary = "draw everywhere, keep the likeliest tokens by the model's score, new or old"
    refs = ("arXiv:2502.03540",)

    eta: float = param(1.0, help="η, weight of the log-probability of old tokens; 0 never masks one", ge=0)

    @override
    def parts(self) -> SamplerParts:
        remask = remasks.PlannerRemask(eta=self.eta)
        return SamplerParts(pace=paces.EverythingPace(steps=self.steps), remask=remask, draw=self.draw)
