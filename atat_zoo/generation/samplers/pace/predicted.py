"""Paces that depend on the predictions of the step: they decide after the network is evaluated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atat_zoo.generation.samplers.pace import CappedPace, Pace, quota
from atat_zoo.registry import component, component_base, param, part

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.modeling.diffusion.steps import Step
    from atat_zoo.modeling.uncertainty import Uncertainty


@component_base
class BoundedPace(Pace):
    """A pace between two numbers of steps, by an uncertainty metric."""

    needs = frozenset({"log_probs"})
    deterministic = True

    min_steps: int = param(10, help="steps for a text that is certain throughout", ge=1)
    max_steps: int = param(100, help="steps for a text that is uncertain throughout; no fewer than min_steps", ge=1)
    uncertainty: Uncertainty = part("uncertainty", "entropy", help="how unsure a prediction is")

    def __attrs_post_init__(self) -> None:
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps must be at least min_steps, {self.min_steps}, not {self.max_steps}")

    def most(self, n: int) -> int:
        """Return max_steps."""
        return self.max_steps


@component
class AdaptivePace(BoundedPace):
    """Unmasks ⌈n/S⌉ of the row's n positions, fewer while the model is unsure.

    At the mean uncertainty u of its masks, the complete text takes S = min_steps + u · (max_steps − min_steps) steps.
    """

    name = "adaptive"
    summary = "between min_steps and max_steps: few positions while the mean uncertainty is high"
    refs = ("ATAT",)

    def take(self, step: Step) -> Tensor:
        """Return ⌈n/S⌉, int64 [A]."""
        u = step.mean_open(step.measure(self.uncertainty)).double().clamp(0, 1)
        steps = self.min_steps + u * (self.max_steps - self.min_steps)
        # ⌈x − tiny⌉, so that rounding errors of the quotient do not raise the result.
        return (step.total.to(u.device, non_blocking=True) / steps - 1e-9).ceil().long()


@component
class ExtendedPace(BoundedPace):
    """Few steps at first, and more for as long as the model is unsure.

    A row plans `min_steps`. Whenever the mean uncertainty of its masks is above the threshold, its plan S grows by
    `added` up to `max_steps`, without which no run need end. After k steps ⌈remaining/(S − k)⌉ are unmasked.
    """

    name = "extended"
    summary = "min_steps, and some more whenever the mean uncertainty is high, up to max_steps"
    refs = ("ATAT",)

    added: int = param(10, help="steps that an uncertain evaluation adds", ge=0)
    threshold: float = param(0.3, help="mean uncertainty above which steps are added", ge=0, le=1)

    def take(self, step: Step) -> Tensor:
        """Return ⌈remaining/(S − k)⌉, int64 [A]."""
        import torch

        if "extended" not in step.memory:
            step.memory["extended"] = torch.full((step.batch,), self.min_steps, device=step.tokens.device)
        planned = step.memory["extended"]
        unsure = step.mean_open(step.measure(self.uncertainty)) > self.threshold
        now = (planned[step.rows] + self.added * unsure).clamp(max=self.max_steps)
        planned[step.rows] = now
        # Rows to which a remask gave something back may be behind their plan.
        left = (now - step.number).clamp(min=1)
        return -(-step.remaining.to(left.device, non_blocking=True) // left)


@component
class ConfidenceThresholdPace(CappedPace):
    """Every position whose likeliest token has a probability above a threshold; the first of the order if none has.

    Wu et al., Fast-dLLM, arXiv:2505.22618, use the order most certain first, in blocks, with a cache.
    """

    name = "confidence_threshold"
    summary = "every position whose prediction is above a confidence, at least one"
    refs = ("arXiv:2505.22618",)
    deterministic = True

    threshold: float = param(0.9, help="max p_θ above which a position is filled; 1 takes one at a time", ge=0, le=1)

    def take(self, step: Step) -> Tensor:
        """Return which positions are filled, bool [A, L]."""
        sure = step.spread(step.distributions().amax(-1).exp()) > self.threshold
        return topped_up(step, sure, self.steps)


@component
class EntropyBoundedPace(CappedPace):
    """The first positions of the order with Σ H − max H ≤ γ nats; always at least one.

    Their joint entropy is at least max H, and they are drawn apart, with entropy Σ H: γ bounds the lost mutual
    information (Ben-Hamu et al., arXiv:2505.24857, with an order that has the most certain first).
    """

    name = "entropy_bounded"
    summary = "as many positions as a bound on the sum of their entropies, less the largest, allows"
    refs = ("arXiv:2505.24857",)
    deterministic = True

    gamma: float = param(0.1, help="γ in nats; 0 takes one uncertain position at a time", ge=0)

    def take(self, step: Step) -> Tensor:
        """Return how many positions are filled, int64 [A]."""
        assert step.ranking is not None
        log_probs = step.distributions()
        # Half the time of `torch.special.entr`, which computes the logarithm again; a probability of 0 adds 0 · 1e4.
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1).double()
        ranked = step.spread(entropy, math.inf).gather(1, step.ranking)
        # After the open positions this is ∞ − ∞ = NaN, for which the comparison is false.
        within = (ranked.cumsum(1) - ranked.cummax(1).values <= self.gamma).sum(1)
        return within.maximum(quota(step, self.steps).to(within.device, non_blocking=True))


_CHUNK = 1 << 24  # probabilities that are compared at once


@component
class KLStablePace(CappedPace):
    """Every position with a confident, stable prediction; the first of the order if there is none.

    A prediction is stable if KL(now ‖ before) was below a threshold in each of the last H evaluations. KLASS (Kim et
    al., arXiv:2511.05664) uses the order most certain first, and 0.6 and 0.015 for LLaDA on GSM8K. Only the last
    evaluation's predictions at open positions are stored, float32 [N, V].
    """

    name = "kl_stable"
    summary = "every position with a confident prediction that no longer changes, at least one"
    refs = ("arXiv:2511.05664",)
    deterministic = True

    confidence: float = param(0.9, help="max p_θ above which a position is confident", ge=0, le=1)
    kl: float = param(0.01, help="nats; a prediction is stable if its KL divergence to the last is below", gt=0)
    history: int = param(2, help="H, number of consecutive evaluations over which it must be stable", ge=1)

    def take(self, step: Step) -> Tensor:
        """Return which positions are filled, bool [A, L]."""
        log_probs = step.distributions()
        sure = step.spread(log_probs.amax(-1).exp()) > self.confidence
        return topped_up(step, sure & (self._unchanged(step, log_probs.float()) >= self.history), self.steps)

    def _unchanged(self, step: Step, now: Tensor) -> Tensor:
        """Return for how many consecutive evaluations each position has been stable, int64 [A, L]."""
        import torch

        memory, device = step.memory, step.tokens.device
        shape = (step.batch, step.open.shape[1])
        if "kl_stable.last" not in memory:
            # The index of a position's prediction in `last`, or −1; its step; for how long it has been stable.
            memory["kl_stable.index"] = torch.full(shape, -1, dtype=torch.int64, device=device)
            memory["kl_stable.number"] = torch.full(shape[:1], -2, dtype=torch.int64, device=device)
            memory["kl_stable.still"] = torch.zeros(shape, dtype=torch.int64, device=device)
            memory["kl_stable.last"] = now[:0]
        row, position = step.where
        rows = step.rows[row]
        # A row that skipped a step starts again, so it does not depend on whether other rows continued.
        index = memory["kl_stable.index"][rows, position]
        index = index.masked_fill(memory["kl_stable.number"][rows] != step.number - 1, -1)
        moved = torch.full_like(now[:, 0], torch.inf)
        if len(memory["kl_stable.last"]):
            # In chunks: the distributions of a large vocabulary take most of the memory.
            size = max(1, _CHUNK // now.shape[1])
            for new, old, at in zip(*(torch.split(x, size) for x in (now, index, moved)), strict=True):
                before = memory["kl_stable.last"][old.clamp(min=0)]
                # 0 · (−∞ − …) is 0.
                terms = torch.where(new > -torch.inf, new.exp() * (new - before), 0.0)
                at.copy_(torch.where(old >= 0, terms.sum(-1), at))
        still = torch.where(moved < self.kl, memory["kl_stable.still"][rows, position] + 1, 0)
        memory["kl_stable.index"].fill_(-1)[rows, position] = torch.arange(len(row), device=device)
        memory["kl_stable.number"][step.rows] = step.number
        memory["kl_stable.still"][rows, position] = still
        memory["kl_stable.last"] = now
        return step.spread(still)


def topped_up(step: Step, taken: Tensor, steps: int | None) -> Tensor:
    """Return `taken` [A, L], filled up to the quota with the first others of the order, bool [A, L]."""
    import torch

    assert step.ranking is not None
    need = quota(step, steps).to(taken.device, non_blocking=True).unsqueeze(1)
    taken = taken & step.open
    missing = need - taken.sum(1, keepdim=True)
    others = (step.open & ~taken).gather(1, step.ranking)
    more = others & (others.cumsum(1) <= missing)
    return taken | torch.zeros_like(taken).scatter_(1, step.ranking, more)
