"""Bounds: how the bound on −log p_θ(x) is estimated on held-out text (MATH 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atat_zoo.errors import UserError
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.bounds import CrossEntropy, Estimate
    from atat_zoo.experiment import Experiment
    from atat_zoo.noise import Noise


class Bound(Protocol):
    """A component of the kind bound."""

    name: str

    @property
    def quantity(self) -> str:
        """What is estimated: `nelbo`, whose exponential is the perplexity, or another bound under a name of its own."""
        ...

    def estimate(
        self,
        losses: CrossEntropy,
        x: Tensor,
        maskable: Tensor,
        keys: Tensor,
        draws: int,
        *,
        mask_id: int,
        noise: Noise,
    ) -> Estimate:
        """Return the estimate for clean text.

        Args:
            losses: of p_θ, at the masked positions of z.
            x: clean tokens, int64 [B, L].
            maskable: bool [B, L].
            keys: one key a sequence, int64 [B]; every mask is a function of it, so that two models see the same.
            draws: masks per sequence.
            mask_id: m.
            noise: the schedule. p_θ is asked at t = time_at(masked/maskable), so that it is a function of z.
        """
        ...


def open_ends(experiment: Experiment, bound: str) -> Iterator[str]:
    """Yield a sentence if the experiment's schedule does not go all the way, for a bound that follows it."""
    if "noise" in experiment.kinds and not experiment.parts["noise"].complete:
        yield _sentence(experiment.parts["noise"], bound)


def whole(noise: Noise, bound: str) -> Noise:
    """Return the schedule if it goes all the way.

    Raises:
        UserError: when it does not.
    """
    if not noise.complete:
        raise UserError(_sentence(noise, bound))
    return noise


def _sentence(noise: Noise, bound: str) -> str:
    return (
        f"evaluation.bound: {bound} follows the noise schedule, and {noise.name!r} does not go all the way from α = 1 "
        "to α = 0, so it would give no bound; use exact_k, which follows none"
    )


@component
class ExactKBound:
    """k uniform on {1 … n} and exactly k tokens masked, weight n/k: the average over all orders.

    Its variance is finite at any length, so it is the default.
    """

    name = "exact_k"
    summary = "exactly k tokens masked, k uniform: the default"
    refs = ("arXiv:2310.14749", "arXiv:2406.03736")
    quantity = "nelbo"

    def estimate(
        self,
        losses: CrossEntropy,
        x: Tensor,
        maskable: Tensor,
        keys: Tensor,
        draws: int,
        *,
        mask_id: int,
        noise: Noise,
    ) -> Estimate:
        """Return the estimate; see `Bound`."""
        from atat_zoo.diffusion.bounds import exact_k

        return exact_k(losses, x, maskable, keys, draws, mask_id=mask_id, time_at=noise.time_at)


@component
class ContinuousTBound:
    """t uniform on (0, 1], stratified over a sequence's draws, each token masked with probability 1 − α(t).

    The estimator of the MDLM paper without its clipping of t. The same number as `exact_k`, with a variance that
    grows without limit as t → 0: harmless at a length of 1,024, not on short sequences.
    """

    name = "continuous_t"
    summary = "t stratified over (0, 1], tokens masked independently"
    refs = ("arXiv:2406.07524", "arXiv:2107.00630")
    quantity = "nelbo"

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit: a schedule that does not go all the way."""
        yield from open_ends(experiment, self.name)

    def estimate(
        self,
        losses: CrossEntropy,
        x: Tensor,
        maskable: Tensor,
        keys: Tensor,
        draws: int,
        *,
        mask_id: int,
        noise: Noise,
    ) -> Estimate:
        """Return the estimate; see `Bound`."""
        from atat_zoo.diffusion.bounds import continuous_t

        noise = whole(noise, self.name)
        return continuous_t(
            losses,
            x,
            maskable,
            keys,
            draws,
            mask_id=mask_id,
            time_at=noise.time_at,
            alpha=noise.alpha,
            weight=noise.weight,
        )


@component
class DiscreteTBound:
    """The bound of a process with T steps, t = 1/T … 1: Σ_i (α_s − α_t)/(1 − α_t) · E ΣCE(z_t).

    Another bound at each T, above the others and tending to them as T grows; it is reported under its own name.
    """

    name = "discrete_t"
    summary = "the bound of T discrete steps, under a name of its own"
    refs = ("arXiv:2107.03006", "arXiv:2406.07524")

    steps: int = param(1000, help="T", ge=1)

    @property
    def quantity(self) -> str:
        """Return the name under which it is reported."""
        return f"discrete T={self.steps}"

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit: a schedule that does not go all the way."""
        yield from open_ends(experiment, self.name)

    def estimate(
        self,
        losses: CrossEntropy,
        x: Tensor,
        maskable: Tensor,
        keys: Tensor,
        draws: int,
        *,
        mask_id: int,
        noise: Noise,
    ) -> Estimate:
        """Return the estimate; see `Bound`."""
        from atat_zoo.diffusion.bounds import discrete_t

        noise = whole(noise, self.name)
        return discrete_t(
            losses,
            x,
            maskable,
            keys,
            draws,
            mask_id=mask_id,
            time_at=noise.time_at,
            alpha=noise.alpha,
            steps=self.steps,
        )
