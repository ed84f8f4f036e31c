"""Bounds: how the bound on −log p_θ(x) is estimated on held-out text (docs/explanation/mathematics.md).

A bound is a sequence of masks with their weights, the same for every model. `diffusion.bounds.average` takes the mean
of the cross-entropy over them, and of any other scores of the masked tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.likelihood_bounds import WeightedMask
    from atat_zoo.experiment import Experiment
    from atat_zoo.modeling.noise import Noise


class Bound(Protocol):
    """A component of the kind bound.

    If it `follows_noise`, the schedule decides what is masked. Then it must go from α = 1 to α = 0, and objectives
    whose process is another one refuse the bound.
    """

    name: str
    follows_noise: ClassVar[bool]

    @property
    def quantity(self) -> str:
        """The name of the estimate: `nelbo`, whose exponential is the perplexity, or another bound's own."""
        ...

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        """Yield masks with their weights, `draws` for each sequence.

        Maskable is bool [B, L]. There is one key per sequence, int64 [B]; every mask is a function of it, so two models
        see the same masks. By the noise, p_θ is evaluated at t = time_at(masked/maskable), so it is a function of z.

        Raises:
            UserError: when the bound follows a schedule that does not go from α = 1 to α = 0.
        """
        ...


class FollowsNoise(Bound):
    """A bound whose masks follow the noise schedule, and that refuses one that does not go from α = 1 to α = 0."""

    follows_noise: ClassVar[bool] = True

    def problems(self, noise: Noise) -> Iterator[Problem]:
        """Yield one for such a schedule."""
        if not noise.complete:
            why = f"{self.name} follows the noise schedule, and {noise.name!r} does not go all the way from α = 1"
            yield Problem(
                "evaluation.bound", f"{why} to α = 0, so it would give no bound; use exact_k, which follows none"
            )

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problem of the experiment's schedule."""
        if "noise" in experiment.kinds:
            yield from self.problems(experiment.parts["noise"])

    def refuse(self, noise: Noise) -> None:
        """Raise the problem."""
        for problem in self.problems(noise):
            raise UserError(problem)


@component
class ExactKBound(Bound):
    """k uniform on {1 … n}, exactly k tokens masked, weight n/k: the average over all orders, of finite variance."""

    name = "exact_k"
    summary = "exactly k masked tokens, k uniform on 1…n; the default"
    refs = ("arXiv:2310.14749", "arXiv:2406.03736")
    quantity = "nelbo"
    follows_noise: ClassVar[bool] = False

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import exact_k

        return exact_k(maskable, keys, draws, time_at=noise.time_at)


@component
class ContinuousTBound(FollowsNoise):
    """t uniform on (0, 1], stratified over a sequence's draws, each token masked with probability 1 − α(t).

    The estimator of the MDLM paper without its clipping of t. The same number as `exact_k`, with a variance that
    grows without limit as t → 0: harmless at a length of 1,024, not on short sequences.
    """

    name = "continuous_t"
    summary = "MDLM's estimator: t stratified over (0, 1], independent masks"
    refs = ("arXiv:2406.07524", "arXiv:2107.00630")
    quantity = "nelbo"

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import continuous_t

        self.refuse(noise)
        return continuous_t(maskable, keys, draws, time_at=noise.time_at, alpha=noise.alpha, weight=noise.weight)


@component
class ClippedTBound(Bound):
    """t uniform on [ε, 1], each token masked with probability c·t, weight 1/t, whatever the model's schedule.

    What the code of published models draws: MDLM's with ε = 1 − c = 0.001 and one draw a sequence, whose times are
    stratified over a batch, so that row i of every batch has its t in the same part of [ε, 1]. It leaves out what
    t < ε contributes, so it is another number than the perplexity, and is not called that.
    """

    name = "clipped_t"
    summary = "t over [ε, 1] as in published code; its result differs from the bound of exact_k"
    refs = ("arXiv:2406.07524", "arXiv:2503.09573")
    # Of its own: a process that is another one has no meaning here, too.
    follows_noise: ClassVar[bool] = True

    least: float = param(1e-3, help="ε, minimum time", gt=0, lt=1)
    most: float = param(0.999, help="c, mask rate at t = 1", gt=0, le=1)
    batch: int = param(1, help="sequences that share the strata of t; must divide evaluation.batch_size", ge=1)

    @property
    def quantity(self) -> str:
        """Return the name under which it is reported."""
        return f"t from {self.least:g}"

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problem of a batch that cuts the strata."""
        if (rows := experiment.evaluation.batch_size) % self.batch:
            problem = f"{rows} is no multiple of the {self.batch} rows that share the strata of clipped_t"
            yield Problem("evaluation.batch_size", f"{problem}; name {self.batch * -(-rows // self.batch)}")

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import clipped_t

        at = noise.time_at
        return clipped_t(maskable, keys, draws, time_at=at, least=self.least, most=self.most, batch=self.batch)


@component
class DiscreteTBound(FollowsNoise):
    """The bound of a process with T steps, t = 1/T … 1: Σ_i (α_s − α_t)/(1 − α_t) · E ΣCE(z_t).

    Another bound at each T, above the others and tending to them as T grows; it is reported under its own name.
    """

    name = "discrete_t"
    summary = "bound of a process with T discrete steps, reported under its own name"
    refs = ("arXiv:2107.03006", "arXiv:2406.07524")

    steps: int = param(1000, help="T", ge=1)

    @property
    def quantity(self) -> str:
        """Return the name under which it is reported."""
        return f"discrete T={self.steps}"

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import discrete_t

        self.refuse(noise)
        return discrete_t(maskable, keys, draws, time_at=noise.time_at, alpha=noise.alpha, steps=self.steps)
