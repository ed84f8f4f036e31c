"""Bounds: estimators of the bound on −log p_θ(x) for held-out text (docs/explanation/mathematics.md).

A bound is a sequence of weighted masks, the same for every model. `diffusion.likelihood_bounds.average` returns the
weighted mean of the cross-entropy, or of any other score of the masked tokens.
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
    """A component of kind `bound`.

    If it `follows_noise`, its masks follow a noise schedule: that of the model (see `FollowsNoise`) or its own. The
    objectives `block`, `autoregressive` and `strided_causal` refuse it, since their bounds follow no schedule.
    """

    name: str
    follows_noise: ClassVar[bool]

    @property
    def quantity(self) -> str:
        """The name under which the estimate is reported; `nelbo` if its exponential per token is the perplexity."""
        ...

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        """Yield `draws` weighted masks, each [B, L], for a batch of sequences.

        `maskable` is bool [B, L]. `keys` has one key per sequence, int64 [B], which determines its masks, so two models
        see the same masks. The time of a mask is noise.time_at(masked/maskable), except with `clipped_t`.

        Raises:
            UserError: if the bound follows a schedule that does not go from α = 1 to α = 0.
        """
        ...


class FollowsNoise(Bound):
    """A bound whose masks follow the model's noise schedule, which must go from α = 1 to α = 0."""

    follows_noise: ClassVar[bool] = True

    def problems(self, noise: Noise) -> Iterator[Problem]:
        """Yield a problem if the schedule does not go from α = 1 to α = 0."""
        if not noise.complete:
            why = f"{self.name} needs a noise schedule from α = 1 to α = 0, but {noise.name!r} does not reach both"
            yield Problem("evaluation.bound", f"{why}; use exact_k, which does not depend on the schedule")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the experiment's schedule does not go from α = 1 to α = 0."""
        if "noise" in experiment.kinds:
            yield from self.problems(experiment.parts["noise"])

    def refuse(self, noise: Noise) -> None:
        """Raise a `UserError` if the schedule does not go from α = 1 to α = 0."""
        for problem in self.problems(noise):
            raise UserError(problem)


@component
class ExactKBound(Bound):
    """The NELBO as an average over all orders: exactly k of n tokens masked, k uniform on {1 … n}, with weight n/k."""

    name = "exact_k"
    summary = "masks of exactly k of n maskable tokens, with k uniform on 1…n; the default"
    refs = ("arXiv:2310.14749", "arXiv:2406.03736")
    quantity = "nelbo"
    follows_noise: ClassVar[bool] = False

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import exact_k

        return exact_k(maskable, keys, draws, time_at=noise.time_at)


@component
class ContinuousTBound(FollowsNoise):
    """Independent masks with probability 1 − α(t), where t is uniform on (0, 1] and stratified over a sequence's draws.

    This is the MDLM paper's estimator without its clipping of t. It has the mean of `exact_k`, but not its finite
    variance: the variance diverges as t → 0, which is harmless at a length of 1,024, but not for short sequences.
    """

    name = "continuous_t"
    summary = "MDLM's estimator: independent masks, with t stratified over (0, 1]"
    refs = ("arXiv:2406.07524", "arXiv:2107.00630")
    quantity = "nelbo"

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import continuous_t

        self.refuse(noise)
        return continuous_t(maskable, keys, draws, time_at=noise.time_at, alpha=noise.alpha, weight=noise.weight)


@component
class ClippedTBound(Bound):
    """Independent masks with probability c·t and weight 1/t, with t uniform on [ε, 1] whatever the model's schedule.

    Published code draws its masks this way: MDLM uses ε = 1 − c = 0.001 and one draw per sequence, stratified over the
    batch, so the t of row i lies in the same stratum of [ε, 1] in every batch. The estimate omits the contribution of
    t < ε, so it is not the NELBO, and its exponential is not called perplexity.
    """

    name = "clipped_t"
    summary = "independent masks with t uniform on [ε, 1], as in published code; differs from exact_k's result"
    refs = ("arXiv:2406.07524", "arXiv:2503.09573")
    # Its masks follow a schedule, although not the model's.
    follows_noise: ClassVar[bool] = True

    least: float = param(1e-3, help="ε, minimum time", gt=0, lt=1)
    most: float = param(0.999, help="c, mask rate at t = 1", gt=0, le=1)
    batch: int = param(
        1, help="number of consecutive sequences over which t is stratified; must divide evaluation.batch_size", ge=1
    )

    @property
    def quantity(self) -> str:
        """The name under which the estimate is reported, such as "t from 0.001"."""
        return f"t from {self.least:g}"

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if evaluation.batch_size is not a multiple of `batch`."""
        if (rows := experiment.evaluation.batch_size) % self.batch:
            problem = f"{rows} is not a multiple of the {self.batch} sequences over which clipped_t stratifies t"
            yield Problem("evaluation.batch_size", f"{problem}; set it to {self.batch * -(-rows // self.batch)}")

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import clipped_t

        at = noise.time_at
        return clipped_t(maskable, keys, draws, time_at=at, least=self.least, most=self.most, batch=self.batch)


@component
class DiscreteTBound(FollowsNoise):
    """The bound of a process with T steps, t = 1/T … 1 and s = t − 1/T: Σ_t (α_s − α_t)/(1 − α_t) · E ΣCE(z_t).

    Each T gives a different bound, which is above the NELBO and converges to it as T grows. It is reported under its
    own name.
    """

    name = "discrete_t"
    summary = "bound of a process with T discrete steps, reported under its own name"
    refs = ("arXiv:2107.03006", "arXiv:2406.07524")

    steps: int = param(1000, help="T, number of steps", ge=1)

    @property
    def quantity(self) -> str:
        """The name under which the estimate is reported, such as "discrete T=1000"."""
        return f"discrete T={self.steps}"

    @override
    def masks(self, maskable: Tensor, keys: Tensor, draws: int, noise: Noise) -> Iterator[WeightedMask]:
        from atat_zoo.diffusion.likelihood_bounds import discrete_t

        self.refuse(noise)
        return discrete_t(maskable, keys, draws, time_at=noise.time_at, alpha=noise.alpha, steps=self.steps)
