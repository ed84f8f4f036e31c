"""Remasks: which tokens that were drawn are hidden again, to be drawn anew."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from atat_zoo.registry import component, component_base, param
from atat_zoo.samplers import SamplerPart

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


class Remask(SamplerPart, Protocol):
    """A component of the kind remask: a callable on a step, asked after the draw in every step but the final.

    It needs "confidence" or nothing; with "rescored" beside it the confidence is that of the latest evaluation.
    Beside an active one the pace must have a number of steps that does not depend on the text, or nothing would end it.
    """

    @property
    def active(self) -> bool:
        """Whether it ever hides a token. If not, it is not asked, and the loop counts without asking the device."""
        return True

    @property
    def needs_grid(self) -> bool:
        """Whether it reads `step.rates`, so that a pace without a grid is refused beside it; false by default."""
        return False

    def rate(self, step: Step) -> float | Tensor:
        """Return σ, the share of visible tokens that the pace makes up for, a number or [A] on the CPU; 0 by default.

        The binomial pace does so (ReMDM, arXiv:2503.00307); its grid is `step.rates`.
        """
        return 0.0

    def __call__(self, step: Step) -> Tensor:
        """Return which tokens are hidden again, bool [A, L]; the loop ignores those that were given.

        `step.tokens` has the tokens of this step in it; `step.fresh` marks them.
        """
        ...


@component
class NoRemask(Remask):
    """A token that was drawn stays."""

    name = "none"
    summary = "a token that was drawn stays"
    active = False

    def __call__(self, step: Step) -> Tensor:
        """Return false everywhere, bool [A, L]."""
        return step.open.new_zeros(step.open.shape)


def grid(step: Step) -> tuple[float, float]:
    """Return 1 − α_t and 1 − α_s; `SamplerParts.misfits` refuses a pace that has none."""
    assert step.rates is not None
    return step.rates


def greatest(step: Step) -> float:
    """Return σ_max = min(1, (1 − α_s)/α_t): with more, more would be hidden than α_s leaves room for."""
    before, after = grid(step)
    return min(1.0, after / (1 - before)) if before < 1 else 1.0


def by_chance(step: Step, rate: float | Tensor) -> Tensor:
    """Return each settled token with the probability `rate`, a number, [A] or [A, L]; bool [A, L]."""
    if not isinstance(rate, int | float):
        rate = rate.to(step.open.device, non_blocking=True)
        rate = rate.unsqueeze(-1) if rate.ndim == 1 else rate
    return (step.uniform("remask") < rate) & settled(step)


def settled(step: Step) -> Tensor:
    """Return what was drawn before this step and is still there, bool [A, L]."""
    drawn = step.free & ~step.open
    return drawn if step.fresh is None else drawn & ~step.fresh


@component_base
class GridRemask(Remask):
    """A remask that follows the pace's grid; by default it hides each settled token with probability σ."""

    refs = ("arXiv:2503.00307",)
    needs_grid = True

    def __call__(self, step: Step) -> Tensor:
        """Return each settled token with probability σ, bool [A, L]."""
        return by_chance(step, step.remask_rate)


@component_base
class SwitchedRemask(GridRemask):
    """A remask that may be switched on for a part of the steps only: ReMDM-switch."""

    switch_on: float = param(1.0, help="share of masked tokens from which on downwards it is switched on", ge=0, le=1)
    switch_off: float = param(0.0, help="share of masked tokens at which it is switched off again", ge=0, le=1)

    def __attrs_post_init__(self) -> None:
        """Refuse an interval in the wrong order."""
        if self.switch_off > self.switch_on:
            raise ValueError(f"switch_off must be at most switch_on, {self.switch_on}, not {self.switch_off}")

    def is_on(self, step: Step) -> bool:
        """Return whether the mask rate with which a step begins is in the interval."""
        return self.switch_off < grid(step)[0] <= self.switch_on


@component
class ReMDMCapRemask(SwitchedRemask):
    """σ = min(η, σ_max): by chance, all tokens alike, with a constant cap.

    Every token that was visible before the step is hidden with probability σ, and the paces `binomial` and `plateau`
    unmask as much more, so that the share of masked tokens is that of the grid (Wang et al., arXiv:2503.00307). With
    an exact denoiser and many steps the joint stays what it is. With `switch_on` below 1 this is ReMDM-switch.
    """

    name = "remdm_cap"
    summary = "every visible token by chance, with a constant probability as far as the grid allows"

    eta: float = param(
        0.04, help="η, the largest probability; published are 0.04, or 0.008 with as many steps as tokens", ge=0, le=1
    )

    def rate(self, step: Step) -> float:
        """Return min(η, σ_max), or 0 outside the interval."""
        return min(self.eta, greatest(step)) if self.is_on(step) else 0.0


@component
class ReMDMRescaleRemask(SwitchedRemask):
    """σ = η σ_max: as `ReMDMCapRemask`, with a fixed share of the most that the grid allows."""

    name = "remdm_rescale"
    summary = "every visible token by chance, with a share of the largest probability that the grid allows"

    eta: float = param(0.015, help="η, the share of σ_max", ge=0, le=1)

    def rate(self, step: Step) -> float:
        """Return η σ_max, or 0 outside the interval."""
        return self.eta * greatest(step) if self.is_on(step) else 0.0


@component
class ReMDMConfRemask(SwitchedRemask):
    """By chance, tokens that were drawn with little probability sooner: σ_i = η σ_max · softmax(−ψ)_i.

    ψ_i is p_θ of the token when it was drawn, and the softmax goes over what was drawn before the step, so about
    η σ_max tokens of a text are hidden a step, however long it is. As published, what is masked is unmasked as without
    remasking: nothing makes up for the hidden ones but the last step (Wang et al., arXiv:2503.00307).
    """

    name = "remdm_conf"
    summary = "by chance, tokens that were drawn with little confidence sooner"
    needs = frozenset({"confidence"})

    eta: float = param(1.0, help="η, the share of σ_max", ge=0, le=1)

    def __call__(self, step: Step) -> Tensor:
        """Return each settled token with its own probability, bool [A, L]."""
        assert step.confidence is not None
        if not self.is_on(step):
            return step.open.new_zeros(step.open.shape)
        # A row in which nothing is settled has no softmax; by_chance leaves it alone.
        weight = (-step.confidence.double()).masked_fill(~settled(step), -math.inf).softmax(1).nan_to_num(0.0)
        return by_chance(step, self.eta * greatest(step) * weight)


@component
class ReMDMLoopRemask(GridRemask):
    """By chance, all tokens alike, in the steps in which the pace's grid stands still.

    With the pace `plateau`: write most of a text, rework it for many steps, then fill in the rest. σ = min(η, σ_max)
    while the mask rate is the same before and after a step, and 0 otherwise (Wang et al., arXiv:2503.00307).
    """

    name = "remdm_loop"
    summary = "every visible token by chance while the pace's grid stands still"

    eta: float = param(0.02, help="η, the probability with which a visible token is hidden in a step", ge=0, le=1)

    def rate(self, step: Step) -> float:
        """Return min(η, σ_max) on the plateau, or 0."""
        before, after = grid(step)
        return min(self.eta, greatest(step)) if 0 < before == after < 1 else 0.0


@component
class PlannerRemask(GridRemask):
    """The least likely tokens go back, new or old, down to the share that the pace's grid leaves visible.

    Self-planning of P2 (Peng et al., arXiv:2502.03540): the score of a new token is its log-probability when it was
    drawn, that of an old one η times the log-probability that the network, asked in the same evaluation, gives it
    where it stands. η = 0 never hides an old token; the higher, the more of them go back. With the pace `everything`
    this is P2; with another one nothing is hidden until more is visible than its grid says.

    A masked model is not trained at visible tokens, so its probability of them is not reliable.
    """

    name = "planner"
    summary = "the tokens that the model itself finds least likely, new or old, down to the grid's share"
    refs = ("arXiv:2502.03540",)
    needs = frozenset({"confidence", "rescored"})

    eta: float = param(1.0, help="η, factor on the log-probability of tokens that were there before the step", ge=0)

    def __call__(self, step: Step) -> Tensor:
        """Return the lowest scores beyond the share that stays, bool [A, L]."""
        import torch

        assert step.confidence is not None
        score = step.confidence.double().clamp(min=1e-300).log()
        score = torch.where(settled(step), self.eta * score, score)
        # What cannot be hidden comes first, and takes no part in the count.
        drawn = step.free & ~step.open
        order = score.masked_fill(~drawn, torch.inf).sort(dim=1, descending=True, stable=True).indices
        # Rounding must not turn ⌊0.3 · 10⌋ masked into 2.
        hidden = (step.total * grid(step)[1] + 1e-9).floor().long().to(order.device, non_blocking=True)
        visible = (~drawn).sum(1) + (step.total.to(order.device, non_blocking=True) - hidden)
        first = torch.arange(order.shape[1], device=order.device) < visible.unsqueeze(1)
        return drawn & ~torch.zeros_like(drawn).scatter_(1, order, first)
