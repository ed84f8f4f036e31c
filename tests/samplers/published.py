"""Parts of published samplers, each a few lines, to show that the loop can carry them out. Not registered."""

import math

import torch

from atat_zoo.diffusion.randomness import uniform
from atat_zoo.registry import component, param

NOTHING = frozenset()


@component
class Cosine:
    """MaskGIT's schedule."""

    name = "cosine"
    needs = NOTHING
    steps: int = param(8, help="T")

    def most(self, n):
        return self.steps

    def rates(self, number):
        return tuple(math.cos(math.pi / 2 * (number + i) / self.steps) for i in (0, 1))

    def take(self, step):
        return step.remaining - (step.total * self.rates(step.number)[1]).floor().long()


@component
class FirstHitting:
    """One token at a time, at t' = t·u^{1/k} (Zheng et al., 2024)."""

    name = "first_hitting"
    needs = NOTHING

    def most(self, n):
        return n

    def rates(self, number):
        return None

    def take(self, step):
        return torch.ones_like(step.remaining)

    def times(self, step):
        before = step.memory.setdefault("first_hitting", torch.ones(step.batch, dtype=torch.float64))
        k = step.open.sum(1)
        before[step.rows] *= uniform(step.keys("time"), 1, torch.float64)[:, 0] ** (1 / k)
        return before[step.rows].float()


@component
class Threshold:
    """All positions whose confidence is above a threshold (Fast-dLLM)."""

    name = "threshold"
    needs = frozenset({"log_probs"})
    threshold: float = param(0.5, help="confidence")

    def most(self, n):
        return n

    def rates(self, number):
        return None

    def take(self, step):
        return step.spread(step.log_probs.amax(-1).exp()) > self.threshold


@component
class EntropyBounded:
    """The longest beginning of the order with Σ H − max H ≤ γ (EB-Sampler)."""

    name = "entropy_bounded"
    needs = frozenset({"log_probs"})
    gamma: float = param(0.5, help="γ")

    def most(self, n):
        return n

    def rates(self, number):
        return None

    def take(self, step):
        entropy = step.spread(torch.special.entr(step.log_probs.exp()).sum(-1), torch.inf).gather(1, step.ranking)
        return (entropy.cumsum(1) - entropy.cummax(1).values <= self.gamma).sum(1)


@component
class Stable:
    """KLASS: positions that are confident, and whose distribution has not moved since the last evaluation."""

    name = "stable"
    needs = frozenset({"log_probs"})
    confidence: float = param(0.5, help="least confidence")
    kl: float = param(0.3, help="most nats that it may have moved")

    def most(self, n):
        return n

    def rates(self, number):
        return None

    def take(self, step):
        shape = (*step.open.shape, step.log_probs.shape[-1])
        now = torch.zeros(shape, dtype=step.log_probs.dtype)
        now[step.open] = step.log_probs
        known = "klass" in step.memory
        if not known:
            step.memory["klass"] = torch.zeros((step.batch, *shape[1:]), dtype=now.dtype)
        before = step.memory["klass"][step.rows]
        step.memory["klass"][step.rows] = now
        moved = (now.exp() * (now - before)).sum(-1)
        confident = step.spread(step.log_probs.amax(-1).exp()) > self.confidence
        return confident & (moved < self.kl) & known


@component
class DrawnProbability:
    """MaskGIT's order: after the draw, by the probability of what was drawn."""

    name = "drawn_probability"
    needs = frozenset({"drawn"})

    def __call__(self, step):
        return step.spread(step.drawn_log_probs)


@component
class Blockwise:
    """Blocks from left to right, at random within one."""

    name = "blockwise"
    needs = NOTHING
    block: int = param(4, help="positions in a block")

    def __call__(self, step):
        u = uniform(step.keys("order"), step.open.shape[1], torch.float64)
        return u - torch.arange(step.open.shape[1]) // self.block


@component
class Cap:
    """ReMDM-cap: every visible token by chance, at most η."""

    name = "remdm_cap"
    active = True
    needs = NOTHING
    eta: float = param(0.2, help="η")

    def rate(self, step):
        before, after = step.rates
        return min(self.eta, after / (1 - before)) if before < 1 else 0.0

    def __call__(self, step):
        u = uniform(step.keys("remask"), step.open.shape[1], torch.float64)
        return (u < step.remask_rate) & ~step.open & ~step.fresh


@component
class LeastConfident:
    """ReMDM-conf and P2 in one: what was drawn with least probability goes back, down to the pace's own share."""

    name = "least_confident"
    active = True
    needs = frozenset({"confidence"})
    steps: int = param(6, help="T")

    def rate(self, step):
        return 0.0

    def __call__(self, step):
        keep = step.total * (step.number + 1) // self.steps
        score = step.confidence.masked_fill(step.open | ~step.free, -1.0)
        ranking = score.sort(dim=1, descending=True, stable=True).indices
        first = torch.arange(ranking.shape[1]) < keep[:, None]
        return ~torch.zeros_like(step.open).scatter_(1, ranking, first) & ~step.open


@component
class All:
    """Everything at once; with a remask that gives back, this is P2."""

    name = "all"
    needs = NOTHING
    steps: int = param(6, help="T")

    def most(self, n):
        return self.steps

    def rates(self, number):
        return None

    def take(self, step):
        return step.remaining
