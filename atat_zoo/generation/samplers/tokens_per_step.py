"""Tokens per step, which sets how many positions each decoding step unmasks and the maximum number of steps.

The loop fills all masks in the last allowed step, so no component needs a final step of its own. Shapes are those of
`Step`; k is the number of a step, counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Protocol

from typing_extensions import override

from atat_zoo.experiment.effects import masks_uniformly
from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.generation.samplers.order import Strided
from atat_zoo.modeling.noise import Noise
from atat_zoo.registry import component, component_base, component_param, param
from atat_zoo.registry.registry_file import inline
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step
    from atat_zoo.experiment import Experiment
    from atat_zoo.modeling.uncertainty import Uncertainty

_CHUNK = 1 << 24  # probabilities that `KLStableTokensPerStep` compares at once


class TokensPerStep(SamplerComponent, Protocol):
    """A component of the kind `tokens_per_step`.

    A component without `needs` decides on the CPU before the forward pass, which rows that unmask nothing skip. One
    that needs "log_probs" or "history" decides after the forward pass and can read `step.ranking`.
    """

    def max_steps_for(self, n: int) -> int:
        """Return the maximum number of steps for a row with n ≥ 1 open positions, at least 1 and nondecreasing in n."""
        ...

    def rates(self, number: int) -> tuple[float, float] | None:
        """Return the expected fraction of masked tokens before and after step `number`, or None without a time grid."""
        return None

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return a mask of the positions to unmask, bool [A, L], or their number, int64 [A].

        Without `needs`, it must be a number on the CPU; with `needs`, at least one position per row.
        """
        ...

    def times(self, step: Step) -> Tensor | None:
        """Return t, float32 [A] in (0, 1], or None (the default) to use the fraction of masked tokens."""
        return None


@component_base
class SteppedTokensPerStep(TokensPerStep):
    """Tokens per step for a fixed number of steps, by default on an evenly spaced time grid."""

    accepts_padding = True

    steps: int = param(64, help="T, the number of decoding steps", ge=1)

    def max_steps_for(self, n: int) -> int:
        """Return T, the number of steps."""
        return self.steps

    def rates(self, number: int) -> tuple[float, float]:
        """Return 1 − k/T and 1 − (k + 1)/T, the expected fractions of masked tokens before and after step k."""
        return 1 - number / self.steps, 1 - (number + 1) / self.steps


@component_base
class CappedTokensPerStep(TokensPerStep):
    """Tokens per step that unmask at least one position in each step and finish within `steps`, if it is set."""

    needs = frozenset({"log_probs"})
    accepts_padding = True

    steps: int | None = param(
        None,
        help="maximum number of decoding steps, which determines the minimum number of tokens per step; default: one "
        "step per token",
        ge=1,
    )

    def max_steps_for(self, n: int) -> int:
        """Return `steps`, or n if `steps` is not set."""
        return n if self.steps is None else self.steps


@component_base
class ByChanceTokensPerStep(SteppedTokensPerStep):
    """The base class for random numbers of tokens: the time grid sets the probability that a token is unmasked."""

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return samples of Binomial(remaining, (α_s − (1 − σ) α_t) / (1 − α_t)), int64 [A] on the CPU.

        σ is the remasking rate; 1 − α_t and 1 − α_s are the step's `rates`.
        """
        import torch

        from atat_zoo.diffusion.randomness import uniform

        before, after = step.rates or self.rates(step.number)
        if before <= 0:
            return step.remaining
        chance = (before - after + step.remask_rate * (1 - before)) / before
        if isinstance(chance, torch.Tensor):
            chance = chance.unsqueeze(-1)
        # One uniform per masked token: the count is exact and does not depend on the length of other rows.
        most = int(step.remaining.max())
        # The key is the kind's earlier name: a different key would change the texts of each seed.
        u = uniform(step.host_keys("pace"), most, torch.float64)
        return ((u < chance) & (torch.arange(most) < step.remaining.unsqueeze(-1))).sum(-1)


@component
class BinomialTokensPerStep(ByChanceTokensPerStep):
    """A random number of tokens per step on a time grid, as in ancestral sampling.

    A token that is masked at t = 1 − k/T is unmasked by s = t − 1/T with probability (α_s − (1 − σ) α_t) / (1 − α_t),
    where σ is the remasking rate (Sahoo et al., arXiv:2406.07524, eq. 6; with σ > 0 Wang et al., arXiv:2503.00307).
    Only the number of tokens is sampled here; with the order `random`, tokens are unmasked independently.
    """

    name = "binomial"
    summary = "random number of tokens per step on a time grid, as in ancestral sampling"
    refs = ("arXiv:2406.07524", "arXiv:2503.00307")

    noise: Noise = component_param("noise", "linear", help="noise schedule of the time grid")

    def rates(self, number: int) -> tuple[float, float]:
        """Return 1 − α at the beginning and at the end of step k."""
        import torch

        times = torch.tensor([self.steps - number, self.steps - number - 1], dtype=torch.float64) / self.steps
        before, after = (1 - self.noise.alpha(times)).tolist()
        return before, after


@component
class FixedTokensPerStep(SteppedTokensPerStep):
    """The same number of tokens in every step, up to rounding: after k of T steps, ⌊n k/T⌋ of n tokens are unmasked."""

    name = "fixed"
    summary = "the same number of tokens in every step"
    refs = ("arXiv:2406.04329",)
    deterministic = True

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return how many positions each row must unmask to follow the schedule, int64 [A] on the CPU."""
        left: Tensor = step.total - step.total * (step.number + 1) // self.steps
        return step.remaining - left


@component
class OneAtATimeTokensPerStep(TokensPerStep):
    """One token per step: exact for any order that is fixed before the tokens are sampled."""

    name = "one_at_a_time"
    summary = "one token per step"
    accepts_padding = True
    deterministic = True

    def max_steps_for(self, n: int) -> int:
        """Return n, one step per position."""
        return n

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return 1, or 0 for finished rows, int64 [A] on the CPU."""
        return quota(step, None)


@component
class CosineTokensPerStep(SteppedTokensPerStep):
    """MaskGIT's cosine schedule: after step k of T, ⌊n cos(π/2 · (k + 1)/T)⌋ of n positions are still masked.

    The schedule unmasks few positions at first, many at the end, and at least one per step (Chang et al.,
    arXiv:2202.04200). This is the deterministic form of `binomial` with the noise schedule `cosine`.
    """

    name = "cosine"
    summary = "cosine schedule: few tokens in the first steps, many in the last"
    refs = ("arXiv:2202.04200",)
    deterministic = True

    def rates(self, number: int) -> tuple[float, float]:
        """Return cos(π/2 · k/T) and cos(π/2 · (k + 1)/T)."""
        # Exactly 0 at the end, which the cosine of a rounded π/2 misses by 6e-17.
        before, after = (math.cos(math.pi / 2 * k / self.steps) for k in (number, number + 1))
        return before, after if number + 1 < self.steps else 0.0

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return how many positions each row must unmask to follow the schedule, int64 [A] on the CPU."""
        left: Tensor = (step.total * self.rates(step.number)[1]).floor().long()
        return (step.remaining - left).clamp(min=1)


@component
class OptimalTokensPerStep(TokensPerStep):
    """The numbers of tokens that minimise the expected NLL of a random order, given the model's loss by mask rate.

    A step from k to k' masked tokens costs (k − k')·f(k) nats, where f(k) is the mean loss of a masked token if k are
    masked, so the best schedule of T steps is a shortest path (Chen et al., arXiv:2511.04647; Lavenant and Zanella,
    arXiv:2510.25544). f is measured on held-out text after training, or by `atat eval` if a model lacks it, and saved
    with the model. It is read at the masked fraction of the whole sequence, given tokens included. No predictions are
    read, so the NFE is min(T, number of masked tokens).
    """

    name = "optimal"
    summary = "optimal for a random order: numbers of tokens from the model's measured loss at each mask rate"
    refs = ("arXiv:2511.04647", "arXiv:2510.25544")
    deterministic = True

    steps: int = param(64, help="T, the number of decoding steps", ge=1)

    def max_steps_for(self, n: int) -> int:
        """Return T, the number of steps."""
        return self.steps

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the model does not predict uniformly masked tokens from all visible ones."""
        if not masks_uniformly(experiment):
            yield Problem(
                "sampler",
                "tokens_per_step 'optimal' needs the loss of uniformly masked tokens, which objective "
                f'{experiment.parts["objective"].name!r} does not measure; set tokens_per_step.use = "fixed"',
            )

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return the first number of tokens of the best schedule for the steps that are left, int64 [A] on the CPU."""
        curve, n, length = step.denoiser.loss_by_mask_rate, int(step.total.max()), step.open.shape[1]
        if curve is None:
            raise UserError(
                "tokens_per_step 'optimal' needs the model's loss at each mask rate, which was not measured; run "
                "`atat eval RUN` once, or use tokens_per_step 'fixed'"
            )
        masked = step.remaining.clone()
        for closed in step.closed.unique().tolist():
            rows = step.closed == closed
            k = step.remaining[rows]
            masked[rows] = curve.next_masked(n, length, closed, self.steps)[k.clamp(max=self.steps - step.number), k]
        return step.remaining - masked


@component
class PlateauTokensPerStep(ByChanceTokensPerStep):
    """The component `binomial` on a time grid with a plateau, during which remasking revises the sequence.

    In the schedule of ReMDM-loop (Wang et al., arXiv:2503.00307), α rises linearly to `height` while t falls from 1 to
    `begin`, is constant until t = `end`, and then rises linearly to 1.
    """

    name = "plateau"
    summary = "time grid with a plateau, during which remasking revises the sequence, as in ReMDM-loop"
    refs = ("arXiv:2503.00307",)

    height: float = param(0.9, help="α on the plateau: the fraction of visible tokens", gt=0, lt=1)
    begin: float = param(0.55, help="time at which the plateau begins; time runs from 1 to 0", gt=0, lt=1)
    end: float = param(0.05, help="time at which the plateau ends; less than `begin`", gt=0, lt=1)

    def __attrs_post_init__(self) -> None:
        if self.end >= self.begin:
            raise ValueError(f"end must be less than begin, {self.begin}, not {self.end}; time runs from 1 to 0")

    def rates(self, number: int) -> tuple[float, float]:
        """Return 1 − α at the beginning and at the end of step k."""
        return self._rate(1 - number / self.steps), self._rate(1 - (number + 1) / self.steps)

    def _rate(self, t: float) -> float:
        if t > self.begin:
            return 1 - self.height * (1 - t) / (1 - self.begin)
        if t >= self.end:
            return 1 - self.height
        return (1 - self.height) * t / self.end


@component
class FirstHittingTokensPerStep(CappedTokensPerStep):
    """One position per step, at the time at which the reverse process unmasks the next position.

    With k positions masked at a mask rate r, the next position is unmasked at r' = r · u^{1/k} with u uniform (Zheng et
    al., arXiv:2409.02908). With the order `random`, this is ancestral sampling with infinitely many steps, in n forward
    passes. r starts as the fraction of masked tokens, which includes masks that this run does not fill. A
    time-conditioned denoiser gets the time at which the noise schedule has the rate r'. With `steps`, several positions
    share the first of their times.
    """

    name = "first_hitting"
    summary = "first-hitting sampler: one token at each unmasking time; exact with one step per token"
    refs = ("arXiv:2409.02908",)
    needs = frozenset[str]()

    noise: Noise = component_param("noise", "linear", help="noise schedule in the training of a time-conditioned model")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the model is time-conditioned with a different noise schedule."""
        own = experiment.parts["noise"]
        if experiment.parts["backbone"].reads_time and own != self.noise:
            here, trained = (inline(unstructure(noise)) for noise in (self.noise, own))
            yield Problem(
                "sampler",
                f"tokens_per_step 'first_hitting' has the noise schedule {here}, but the model was trained with "
                f"{trained}; set the sampler's noise to the latter",
            )

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return ⌈remaining / steps left⌉, or 1 without `steps`, int64 [A] on the CPU."""
        return quota(step, self.steps)

    def times(self, step: Step) -> Tensor:
        """Return the time at the rate r', float32 [A], and store the last position's rate in `step.memory`."""
        import torch

        from atat_zoo.diffusion.randomness import uniform

        before = step.memory.setdefault(
            "first_hitting", torch.zeros(step.batch, dtype=torch.float64, device=step.tokens.device)
        )
        count = self.num_to_unmask(step)
        hit = torch.arange(int(count.max()))
        # 1 − u and the rates are never 0; logarithms, so that many small factors do not underflow.
        u = 1 - uniform(step.host_keys("time"), len(hit), torch.float64)
        left = (step.remaining.unsqueeze(1) - hit).clamp(min=1)
        logs = torch.where(hit < count.unsqueeze(1), u.log() / left, 0.0).to(before.device, non_blocking=True)
        masked = step.tokens == step.mask_id
        closed, open_ = ((masked & which).double().mean(1) for which in (~step.open, step.open))
        now = before[step.rows]
        now = torch.where(now > 0, now, open_)
        before[step.rows] = now * logs.sum(1).exp()
        t = self.noise.time_at(closed + now * logs[:, 0].exp())
        return t.float().clamp(min=torch.finfo(torch.float32).tiny)


@component
class EverythingTokensPerStep(SteppedTokensPerStep):
    """All masked positions in every step, for use with a remasking component that remasks most of them.

    With the remasking `planner` this is path planning (Peng et al., arXiv:2502.03540). With the remasking `none`, one
    step samples every token from its own marginal.
    """

    name = "everything"
    summary = "all masked positions in every step; for use with a remasking component that remasks most of them"
    refs = ("arXiv:2502.03540",)
    deterministic = True

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return the number of open positions, int64 [A] on the CPU."""
        return step.remaining


@component
class PositionSetTokensPerStep(Strided, TokensPerStep):
    """Tokens per step for the order `strided`: step k fills the positions j with (j + offset) mod s = k."""

    name = "position_set"
    summary = "for the order `strided`: all positions that belong to the current step"
    accepts_padding = True

    def max_steps_for(self, n: int) -> int:
        """Return s, the number of steps."""
        return self.stride

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return ⌈(n − (k − offset) mod s)/s⌉ for n positions to fill, int64 [A] on the CPU."""
        first = (step.number - self.offsets(step.host_seeds)) % self.stride
        return -((first - step.total) // self.stride)


@component_base
class BoundedTokensPerStep(TokensPerStep):
    """Tokens per step that depend on the predictions' uncertainty, for `min_steps` to `max_steps` steps."""

    needs = frozenset({"log_probs"})
    deterministic = accepts_padding = True

    min_steps: int = param(10, help="number of decoding steps if the mean uncertainty is 0", ge=1)
    max_steps: int = param(100, help="number of decoding steps if the mean uncertainty is 1; at least min_steps", ge=1)
    uncertainty: Uncertainty = component_param("uncertainty", "entropy", help="uncertainty metric")

    def __attrs_post_init__(self) -> None:
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps must be at least min_steps, {self.min_steps}, not {self.max_steps}")

    def max_steps_for(self, n: int) -> int:
        """Return `max_steps`."""
        return self.max_steps


@component
class AdaptiveTokensPerStep(BoundedTokensPerStep):
    """Fewer tokens per step while the model is uncertain: each step unmasks ⌈n/S⌉ of the n positions to fill.

    S = min_steps + u · (max_steps − min_steps), where u is the mean uncertainty over the masked positions.
    """

    name = "adaptive"
    summary = "adaptive: fewer tokens per step while the mean uncertainty is high; min_steps to max_steps steps"
    refs = ("ATAT",)

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return ⌈n/S⌉, int64 [A]."""
        u = step.mean_open(step.measure(self.uncertainty)).double().clamp(0, 1)
        steps = self.min_steps + u * (self.max_steps - self.min_steps)
        # ⌈x − tiny⌉, so that rounding errors of the quotient do not raise the result.
        return (step.total.to(u.device, non_blocking=True) / steps - 1e-9).ceil().long()


@component
class ExtendedTokensPerStep(BoundedTokensPerStep):
    """A plan of `min_steps` decoding steps, extended while the model is uncertain.

    Whenever the mean uncertainty over the masked positions is above the threshold, the planned number of steps S grows
    by `added_steps`, up to `max_steps`. The step after the first k unmasks ⌈remaining/(S − k)⌉ positions or, with
    `rounding = "down"`, as in the ATAT report, max(1, ⌊remaining/(S − k)⌋).
    """

    name = "extended"
    summary = "min_steps decoding steps, extended up to max_steps whenever the mean uncertainty is high"
    refs = ("ATAT",)

    added_steps: int = param(10, help="number of decoding steps that each uncertain step adds", ge=0)
    threshold: float = param(0.3, help="mean uncertainty above which decoding steps are added", ge=0, le=1)
    rounding: Literal["up", "down"] = param("up", help="how the number of tokens per step is rounded")

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return ⌈remaining/(S − k)⌉ or max(1, ⌊remaining/(S − k)⌋), int64 [A]."""
        import torch

        if "extended" not in step.memory:
            step.memory["extended"] = torch.full((step.batch,), self.min_steps, device=step.tokens.device)
        planned = step.memory["extended"]
        unsure = step.mean_open(step.measure(self.uncertainty)) > self.threshold
        now = (planned[step.rows] + self.added_steps * unsure).clamp(max=self.max_steps)
        planned[step.rows] = now
        # Rows in which tokens were remasked may be behind their plan.
        left = (now - step.number).clamp(min=1)
        remaining = step.remaining.to(left.device, non_blocking=True)
        return -(-remaining // left) if self.rounding == "up" else (remaining // left).clamp(min=1)


@component
class ConfidenceThresholdTokensPerStep(CappedTokensPerStep):
    """All positions at which max p_θ exceeds a threshold, or the first position of the order if there are none.

    With `steps`, the next positions of the order are added if needed to finish in time. Fast-dLLM (Wu et al.,
    arXiv:2505.22618) uses this component with the order `uncertainty`, most certain first, with blocks and a cache.
    """

    name = "confidence_threshold"
    summary = "all positions above a confidence threshold, at least one per step"
    refs = ("arXiv:2505.22618",)
    deterministic = True

    threshold: float = param(0.9, help="threshold on max p_θ; 1 fills one position per step", ge=0, le=1)

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return a mask of the positions to fill, bool [A, L]."""
        sure = step.spread(step.distributions().amax(-1).exp()) > self.threshold
        return topped_up(step, sure, self.steps)


@component
class EntropyBoundedTokensPerStep(CappedTokensPerStep):
    """The longest prefix of the order, at least one position, whose predictions' entropies H have Σ H − max H ≤ γ nats.

    The joint entropy of these positions is at least max H, and independent samples have the entropy Σ H, so γ bounds
    the lost mutual information (Ben-Hamu et al., arXiv:2505.24857, with the order `uncertainty`, most certain first).
    """

    name = "entropy_bounded"
    summary = "as many positions as an entropy bound allows, as in the EB-sampler"
    refs = ("arXiv:2505.24857",)
    deterministic = True

    gamma: float = param(0.1, help="γ, the entropy bound in nats; 0 fills one uncertain position per step", ge=0)

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return the number of positions to fill, int64 [A]."""
        assert step.ranking is not None
        log_probs = step.distributions()
        # Half the time of `torch.special.entr`, which computes the logarithm again; a probability of 0 adds 0 · 1e4.
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1).double()
        ranked = step.spread(entropy, math.inf).gather(1, step.ranking)
        # After the open positions this is ∞ − ∞ = NaN, for which the comparison is false.
        within = (ranked.cumsum(1) - ranked.cummax(1).values <= self.gamma).sum(1)
        return within.maximum(quota(step, self.steps).to(within.device, non_blocking=True))


@component
class KLStableTokensPerStep(CappedTokensPerStep):
    """All positions with a confident and stable prediction, or the first position of the order if there are none.

    A prediction is stable if KL(now ‖ before) was below a threshold in each of the last `history_length` steps. KLASS
    (Kim et al., arXiv:2511.05664) uses the order `uncertainty`, most certain first, and for LLaDA on GSM8K thresholds
    of 0.6 (confidence) and 0.015 (KL). Only the last predictions at open positions are stored, float32 [N, V].
    """

    name = "kl_stable"
    summary = "all positions whose prediction is confident and stable, at least one per step, as in KLASS"
    refs = ("arXiv:2511.05664",)
    deterministic = True

    confidence_threshold: float = param(
        0.9, help="threshold on max p_θ above which a prediction is confident", ge=0, le=1
    )
    kl_threshold: float = param(
        0.01,
        help="threshold in nats on the KL divergence from the previous prediction, below which a prediction is stable",
        gt=0,
    )
    history_length: int = param(2, help="H, consecutive decoding steps for which a prediction must be stable", ge=1)

    def num_to_unmask(self, step: Step) -> Tensor:
        """Return a mask of the positions to fill, bool [A, L]."""
        log_probs = step.distributions()
        sure = step.spread(log_probs.amax(-1).exp()) > self.confidence_threshold
        return topped_up(step, sure & (self._unchanged(step, log_probs.float()) >= self.history_length), self.steps)

    def _unchanged(self, step: Step, now: Tensor) -> Tensor:
        """Return the number of consecutive steps for which each position has been stable, int64 [A, L]."""
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
        still = torch.where(moved < self.kl_threshold, memory["kl_stable.still"][rows, position] + 1, 0)
        memory["kl_stable.index"].fill_(-1)[rows, position] = torch.arange(len(row), device=device)
        memory["kl_stable.number"][step.rows] = step.number
        memory["kl_stable.still"][rows, position] = still
        memory["kl_stable.last"] = now
        return step.spread(still)


def topped_up(step: Step, taken: Tensor, steps: int | None) -> Tensor:
    """Return `taken`, bool [A, L], with the next positions of the order added up to the `quota` of each row."""
    import torch

    assert step.ranking is not None
    need = quota(step, steps).to(taken.device, non_blocking=True).unsqueeze(1)
    taken = taken & step.open
    missing = need - taken.sum(1, keepdim=True)
    others = (step.open & ~taken).gather(1, step.ranking)
    more = others & (others.cumsum(1) <= missing)
    return taken | torch.zeros_like(taken).scatter_(1, step.ranking, more)


def quota(step: Step, steps: int | None) -> Tensor:
    """Return ⌈remaining / steps left⌉, or 1 without `steps` (0 for a finished row), int64 [A] on the CPU."""
    if steps is None:
        return step.remaining.clamp(max=1)
    return -(-step.remaining // max(steps - step.number, 1))
