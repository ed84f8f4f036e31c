"""Remasks: which drawn tokens are masked again, to be drawn anew."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.registry import component, component_base, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step


class Remasking(SamplerComponent, Protocol):
    """A component of the kind remasking, called after the draw in every step but the last.

    It needs "confidence" or nothing; with "rescored" beside it the confidence is that of the latest evaluation.
    If it is active, the tokens per step must have a number of steps that does not depend on the text, or no run would
    end.
    """

    @property
    def active(self) -> bool:
        """Whether it ever masks a token. If not, it is not called, and the loop counts without reading the device."""
        return True

    @property
    def needs_grid(self) -> bool:
        """Whether it reads `step.rates`, so that it refuses tokens per step without a grid; false by default."""
        return False

    def rate(self, step: Step) -> float | Tensor:
        """Return σ, the share of visible tokens that the tokens per step makes up for, a number or [A] on the CPU;
        default 0.
        """
        return 0.0

    def __call__(self, step: Step) -> Tensor:
        """Return which tokens to mask again, bool [A, L]; the loop never masks given tokens. New ones are `fresh`."""
        ...


@component
class NoRemasking(Remasking):
    """Sampled tokens are final."""

    name = "none"
    summary = "no remasking: sampled tokens are final"
    active = False

    def __call__(self, step: Step) -> Tensor:
        """Return false everywhere, bool [A, L]."""
        return step.open.new_zeros(step.open.shape)


def grid(step: Step) -> tuple[float, float]:
    """Return 1 − α_t and 1 − α_s; `SamplerChoices.incompatibilities` refuses tokens per step that has none."""
    assert step.rates is not None
    return step.rates


def greatest(step: Step) -> float:
    """Return σ_max = min(1, (1 − α_s)/α_t): a larger σ would mask more than the share 1 − α_s."""
    before, after = grid(step)
    return min(1.0, after / (1 - before)) if before < 1 else 1.0


def by_chance(step: Step, rate: float | Tensor) -> Tensor:
    """Return settled tokens at random, each with probability `rate`, a number, [A] or [A, L]; bool [A, L]."""
    if not isinstance(rate, int | float):
        rate = rate.to(step.open.device, non_blocking=True)
        rate = rate.unsqueeze(-1) if rate.ndim == 1 else rate
    # The key is the kind's earlier name: another one would change what each seed writes.
    return (step.uniform("remask") < rate) & settled(step)


def settled(step: Step) -> Tensor:
    """Return the visible tokens that were drawn before this step, bool [A, L]."""
    drawn = step.free & ~step.open
    return drawn if step.fresh is None else drawn & ~step.fresh


@component_base
class GridRemasking(Remasking):
    """A remasking that follows the tokens per step's grid; by default it masks each settled token with probability
    σ.
    """

    refs = ("arXiv:2503.00307",)
    needs_grid = True

    def __call__(self, step: Step) -> Tensor:
        """Return each settled token with probability σ, bool [A, L]."""
        return by_chance(step, step.remask_rate)


@component_base
class SwitchedRemasking(GridRemasking):
    """A remasking that can be active in a part of the steps only: ReMDM-switch."""

    switch_on: float = param(1.0, help="remasking only once the fraction of masked tokens is at most this", ge=0, le=1)
    switch_off: float = param(0.0, help="stop remasking once the fraction of masked tokens is at most this", ge=0, le=1)

    def __attrs_post_init__(self) -> None:
        if self.switch_off > self.switch_on:
            raise ValueError(f"switch_off must be at most switch_on, {self.switch_on}, not {self.switch_off}")

    def is_on(self, step: Step) -> bool:
        """Return whether the mask rate with which a step begins is in the interval."""
        return self.switch_off < grid(step)[0] <= self.switch_on


@component
class ReMDMCapRemasking(SwitchedRemasking):
    """σ = min(η, σ_max): at random, all tokens alike, with a constant cap.

    Every token that was visible before the step is masked with probability σ. The paces `binomial` and `plateau`
    unmask as many more, so the share of masked tokens follows the grid (Wang et al., arXiv:2503.00307). With an exact
    denoiser and many steps the joint distribution does not change.
    """

    name = "remdm_cap"
    summary = "ReMDM-cap: every visible token, with a capped constant probability"

    eta: float = param(
        0.04, help="η, maximum remasking probability; published: 0.04, or 0.008 with one step per token", ge=0, le=1
    )

    def rate(self, step: Step) -> float:
        """Return min(η, σ_max), or 0 outside the interval."""
        return min(self.eta, greatest(step)) if self.is_on(step) else 0.0


@component
class ReMDMRescaleRemasking(SwitchedRemasking):
    """σ = η σ_max: as `ReMDMCapRemasking`, with a fraction of the maximum probability."""

    name = "remdm_rescale"
    summary = "ReMDM-rescale: every visible token, with a fraction of the maximum probability"

    eta: float = param(0.015, help="η, fraction of σ_max", ge=0, le=1)

    def rate(self, step: Step) -> float:
        """Return η σ_max, or 0 outside the interval."""
        return self.eta * greatest(step) if self.is_on(step) else 0.0


@component
class ReMDMConfRemasking(SwitchedRemasking):
    """At random, tokens with a low probability more often: σ_i = η σ_max · softmax(−ψ)_i.

    ψ_i is p_θ of the token when it was drawn. The softmax is over tokens drawn before the step, so each step masks
    about η σ_max tokens of a text of any length. As published, the tokens per step does not compensate for them:
    masked tokens are unmasked as without remasking, and the last step fills the rest (Wang et al., arXiv:2503.00307).
    """

    name = "remdm_conf"
    summary = "ReMDM-conf: at random, tokens of low confidence more often"
    needs = frozenset({"confidence"})

    eta: float = param(1.0, help="η, fraction of σ_max", ge=0, le=1)

    def __call__(self, step: Step) -> Tensor:
        """Return each settled token with its own probability, bool [A, L]."""
        assert step.confidence is not None
        if not self.is_on(step):
            return step.open.new_zeros(step.open.shape)
        # A row without settled tokens has no softmax; by_chance does not change it.
        weight = (-step.confidence.double()).masked_fill(~settled(step), -math.inf).softmax(1).nan_to_num(0.0)
        return by_chance(step, self.eta * greatest(step) * weight)


@component
class ReMDMLoopRemasking(GridRemasking):
    """σ = min(η, σ_max) in steps in which the tokens per step's grid is constant, otherwise 0 (Wang et al.,
    arXiv:2503.00307).

    With the tokens per step `plateau`: write most of a text, rework it for many steps, then fill in the rest.
    """

    name = "remdm_loop"
    summary = "ReMDM-loop: every visible token, while the time grid is on its plateau"

    eta: float = param(0.02, help="η, probability of remasking a visible token in a step", ge=0, le=1)

    def rate(self, step: Step) -> float:
        """Return min(η, σ_max) on the plateau, or 0."""
        before, after = grid(step)
        return min(self.eta, greatest(step)) if 0 < before == after < 1 else 0.0


@component
class PlannerRemasking(GridRemasking):
    """Masks the least likely tokens, new or old, down to the share that the tokens per step's grid leaves visible.

    Self-planning of P2 (Peng et al., arXiv:2502.03540), with tokens_per_step `everything`: the score of a new token is
    its
    log-probability when it was drawn, that of an old one η times its log-probability in the same evaluation; at visible
    tokens a masked model is not trained, and not reliable. η = 0 never masks an old token, a higher η more of them.
    """

    name = "planner"
    summary = "P2: the tokens with the lowest scores, new or old, down to the time grid's fraction"
    refs = ("arXiv:2502.03540",)
    needs = frozenset({"confidence", "rescored"})

    eta: float = param(
        1.0, help="η, weight of the log-probability of tokens from before the step; 0 never remasks them", ge=0
    )

    def __call__(self, step: Step) -> Tensor:
        """Return the tokens with the lowest scores, beyond the share that stays, bool [A, L]."""
        import torch

        assert step.confidence is not None
        score = step.confidence.double().clamp(min=1e-300).log()
        score = torch.where(settled(step), self.eta * score, score)
        # Tokens that cannot be masked come first and are not counted.
        drawn = step.free & ~step.open
        order = score.masked_fill(~drawn, torch.inf).sort(dim=1, descending=True, stable=True).indices
        # Rounding must not turn ⌊0.3 · 10⌋ masked into 2: in float32 it would, of 180 and more.
        masked = (step.total.double() * grid(step)[1] + 1e-9).floor().long().to(order.device, non_blocking=True)
        visible = (~drawn).sum(1) + (step.total.to(order.device, non_blocking=True) - masked)
        first = torch.arange(order.shape[1], device=order.device) < visible.unsqueeze(1)
        return drawn & ~torch.zeros_like(drawn).scatter_(1, order, first)
