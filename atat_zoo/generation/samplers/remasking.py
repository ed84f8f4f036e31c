"""Remasking, which chooses the sampled tokens that are masked again and resampled. Shapes are those of `Step`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.registry import component, component_base, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step


class Remasking(SamplerComponent, Protocol):
    """A component of the kind `remasking`, called after token sampling in every step except the last.

    It may need "confidence"; if it also needs "rescored", the confidence comes from the latest forward pass. If
    remasking is active, the maximum number of steps must not depend on the number of masks, which can rise again.
    """

    @property
    def active(self) -> bool:
        """Whether the component ever masks tokens; if not, the loop does not call it."""
        return True

    @property
    def needs_grid(self) -> bool:
        """Whether the component reads `step.rates`, which needs tokens per step with a time grid; false by default."""
        return False

    def rate(self, step: Step) -> float | Tensor:
        """Return σ, a number or [A] on the CPU: the remasked fraction, if `tokens_per_step` compensates for it."""
        return 0.0

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of the tokens to remask, bool [A, L]; the loop never masks tokens that it did not sample."""
        ...


@component
class NoRemasking(Remasking):
    """No remasking: sampled tokens are final."""

    name = "none"
    summary = "no remasking: sampled tokens are final"
    active = False
    accepts_padding = True

    def __call__(self, step: Step) -> Tensor:
        """Return false everywhere, bool [A, L]."""
        return step.open.new_zeros(step.open.shape)


def grid(step: Step) -> tuple[float, float]:
    """Return 1 − α_t and 1 − α_s, the expected fractions of masked tokens before and after the step."""
    assert step.rates is not None
    return step.rates


def greatest(step: Step) -> float:
    """Return σ_max = min(1, (1 − α_s)/α_t): a larger σ would mask more than the fraction 1 − α_s."""
    before, after = grid(step)
    return min(1.0, after / (1 - before)) if before < 1 else 1.0


def by_chance(step: Step, rate: float | Tensor) -> Tensor:
    """Return a mask of earlier steps' tokens, bool [A, L], each with probability `rate`, a number, [A] or [A, L]."""
    if not isinstance(rate, int | float):
        rate = rate.to(step.open.device, non_blocking=True)
        rate = rate.unsqueeze(-1) if rate.ndim == 1 else rate
    # The key is the kind's earlier name: a different key would change the texts of each seed.
    return (step.uniform("remask") < rate) & settled(step)


def settled(step: Step) -> Tensor:
    """Return a mask of the visible tokens that were sampled before this step, bool [A, L]."""
    drawn = step.free & ~step.open
    return drawn if step.fresh is None else drawn & ~step.fresh


@component_base
class GridRemasking(Remasking):
    """Remasking on the time grid of `tokens_per_step`; by default, tokens of earlier steps have probability σ."""

    refs = ("arXiv:2503.00307",)
    needs_grid = accepts_padding = True

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of tokens of earlier steps, bool [A, L], each chosen with probability σ."""
        return by_chance(step, step.remask_rate)


@component_base
class SwitchedRemasking(GridRemasking):
    """Remasking that is active only in an interval of mask rates (ReMDM-switch)."""

    switch_on: float = param(1.0, help="start remasking once the fraction of masked tokens is at most this", ge=0, le=1)
    switch_off: float = param(0.0, help="stop remasking once the fraction of masked tokens is at most this", ge=0, le=1)

    def __attrs_post_init__(self) -> None:
        if self.switch_off > self.switch_on:
            raise ValueError(f"switch_off must be at most switch_on, {self.switch_on}, not {self.switch_off}")

    def is_on(self, step: Step) -> bool:
        """Return whether the mask rate at the beginning of the step is in the interval."""
        return self.switch_off < grid(step)[0] <= self.switch_on


@component
class ReMDMCapRemasking(SwitchedRemasking):
    """Random remasking of all tokens with the same probability, capped at a constant: σ = min(η, σ_max).

    Every token sampled before the step is masked with probability σ. The `tokens_per_step` components `binomial` and
    `plateau` unmask correspondingly more, so the fraction of masked tokens follows the grid (Wang et al.,
    arXiv:2503.00307). With an exact denoiser and many steps the joint distribution does not change.
    """

    name = "remdm_cap"
    summary = "ReMDM-cap: remasks every visible token with the same probability, at most a constant"

    eta: float = param(
        0.04, help="η, maximum remasking probability; published: 0.04, or 0.008 with one step per token", ge=0, le=1
    )

    def rate(self, step: Step) -> float:
        """Return min(η, σ_max) if the mask rate is in the interval, and 0 otherwise."""
        return min(self.eta, greatest(step)) if self.is_on(step) else 0.0


@component
class ReMDMRescaleRemasking(SwitchedRemasking):
    """Random remasking like `ReMDMCapRemasking`, but with a fraction of the maximum probability: σ = η σ_max."""

    name = "remdm_rescale"
    summary = "ReMDM-rescale: remasks every visible token with a fraction of the maximum probability"

    eta: float = param(0.015, help="η, remasking probability as a fraction of its maximum σ_max", ge=0, le=1)

    def rate(self, step: Step) -> float:
        """Return η σ_max if the mask rate is in the interval, and 0 otherwise."""
        return self.eta * greatest(step) if self.is_on(step) else 0.0


@component
class ReMDMConfRemasking(SwitchedRemasking):
    """Random remasking that prefers low-probability tokens: σ_i = η σ_max · softmax(−ψ)_i.

    ψ_i is the probability p_θ that the token had when it was sampled. The softmax is over the tokens sampled before the
    step, so each step masks η σ_max ≤ 1 tokens on average, whatever the length of the sequence. As published (Wang et
    al., arXiv:2503.00307), `tokens_per_step` does not compensate for these tokens: each step unmasks as many as without
    remasking, and the last step fills the rest.
    """

    name = "remdm_conf"
    summary = "ReMDM-conf: remasks random tokens, those of low confidence more often"
    needs = frozenset({"confidence"})

    eta: float = param(1.0, help="η, sum of the remasking probabilities as a fraction of its maximum σ_max", ge=0, le=1)

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of tokens of earlier steps, bool [A, L], each chosen with its own probability σ_i."""
        assert step.confidence is not None
        if not self.is_on(step):
            return step.open.new_zeros(step.open.shape)
        # A row without settled tokens has no softmax; by_chance does not change it.
        weight = (-step.confidence.double()).masked_fill(~settled(step), -math.inf).softmax(1).nan_to_num(0.0)
        return by_chance(step, self.eta * greatest(step) * weight)


@component
class ReMDMLoopRemasking(GridRemasking):
    """Random remasking with σ = min(η, σ_max) while the time grid is on a plateau (Wang et al., arXiv:2503.00307).

    With tokens_per_step `plateau`, the sampler fills most of a sequence, revises it for many steps, then fills the
    rest.
    """

    name = "remdm_loop"
    summary = "ReMDM-loop: remasks visible tokens at random while the time grid is on its plateau"

    eta: float = param(0.02, help="η, maximum probability with which a step remasks a visible token", ge=0, le=1)

    def rate(self, step: Step) -> float:
        """Return min(η, σ_max) on the plateau, and 0 elsewhere."""
        before, after = grid(step)
        return min(self.eta, greatest(step)) if 0 < before == after < 1 else 0.0


@component
class PlannerRemasking(GridRemasking):
    """Path planning: masks the tokens with the lowest scores, so that the time grid's fraction of tokens stays visible.

    The tokens may be new or old. This is the self-planning of P2 (Peng et al., arXiv:2502.03540), for tokens_per_step
    `everything`: the score of a new token is its log-probability when it was sampled; the score of an old token is η
    times its log-probability in the same forward pass. A masked model is not trained at visible tokens, so the scores
    of old tokens are less reliable. η = 0 never masks an old token; a higher η masks more of them.
    """

    name = "planner"
    summary = "P2: remasks the tokens with the lowest scores, new or old, to keep the time grid's fraction visible"
    refs = ("arXiv:2502.03540",)
    needs = frozenset({"confidence", "rescored"})

    eta: float = param(
        1.0,
        help="η, weight of the log-probability of tokens sampled before the step; 0 never remasks these tokens",
        ge=0,
    )

    def __call__(self, step: Step) -> Tensor:
        """Return a mask of the lowest-scoring tokens, bool [A, L]; the time grid's fraction stays visible."""
        import torch

        assert step.confidence is not None
        score = step.confidence.double().clamp(min=1e-300).log()
        score = torch.where(settled(step), self.eta * score, score)
        # Tokens that cannot be masked come first and are not counted.
        drawn = step.free & ~step.open
        order = score.masked_fill(~drawn, torch.inf).sort(dim=1, descending=True, stable=True).indices
        # Rounding must not turn ⌊0.3 · 10⌋ masked tokens into 2; float32 would for sequences of 180 tokens or more.
        masked = (step.total.double() * grid(step)[1] + 1e-9).floor().long().to(order.device, non_blocking=True)
        visible = (~drawn).sum(1) + (step.total.to(order.device, non_blocking=True) - masked)
        first = torch.arange(order.shape[1], device=order.device) < visible.unsqueeze(1)
        return drawn & ~torch.zeros_like(drawn).scatter_(1, order, first)
