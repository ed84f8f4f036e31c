"""Mask-rate distributions for training.

The rate r of each sequence is drawn from a density f on (0, 1], stratified over the sequences of a training step. With
the NELBO weight 1/(r·f(r)) and a summed cross-entropy g(r), the expectation does not depend on f:

    E_{r ~ f} [ g(r) / (r·f(r)) ]  =  ∫₀¹ g(r)/r dr

With loss weights of 1, f determines how much each rate contributes. A time-conditioned network reads the time at which
the noise schedule has the drawn rate. Noise schedules, bounds, samplers and evaluations do not depend on f. Some
objectives use no mask-rate distribution: `mlm` masks a fixed fraction, `d3pm` draws one of its T steps, `adaptive`
draws the number of masks or the time of its own process, and `autoregressive` masks nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from typing_extensions import override

from atat_zoo.diffusion.contracts import NoiseLevels
from atat_zoo.modeling.noise import Noise
from atat_zoo.registry import component, component_base, param

if TYPE_CHECKING:
    from torch import Tensor


class MaskRates(Protocol):
    """A component of kind `mask_rates`, or the result of its `build(context)`.

    A component with tensors has a `network` that defines `levels`. If the component has a state, its network also
    implements `StatefulComponent`.
    """

    name: str

    @property
    def finite_variance(self) -> bool:
        """Whether ∫ 1/f dr is finite; true by default.

        If not, training with NELBO weights would have gradients of infinite variance and is refused.
        """
        return True

    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        """Return the rates, their times and their NELBO weights, float32, in the shape of u; draw no random numbers.

        u is uniform in (0, 1], with one value per sequence, [B], or per block, [B, K]; strata of u become strata of f.
        t is the time at which the noise schedule has the drawn rate, clamped to the schedule's range. `progress` is the
        completed fraction of training, in [0, 1].
        """


@component
class NoiseRates(MaskRates):
    """The mask rates of the noise schedule at uniform times: r = 1 − α(u), weight −α'/(1 − α).

    The density of the rates is −1/α' at their times. It is uniform only for linear noise; with cosine noise, r =
    sin(πu/2), and high rates are more frequent.
    """

    name = "noise"
    summary = "mask rates of the noise schedule at uniform times, as in MDLM"
    refs = ("arXiv:2406.07524", "arXiv:2107.00630")

    @override
    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        t = u.float()
        return NoiseLevels(t=t, rate=1 - noise.alpha(t), weight=noise.weight(t))


@component
class UniformRates(MaskRates):
    """Uniform mask rates on (0, 1] for any noise schedule: r = u, weight 1/r; equal to `noise` for linear noise."""

    name = "uniform"
    summary = "uniform mask rates on (0, 1], for any noise schedule"
    refs = ("arXiv:2406.07524", "arXiv:2406.03736")

    @override
    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        rate = u.float()
        return NoiseLevels(t=noise.time_at(rate), rate=rate, weight=rate.reciprocal())


@component_base
class _MixedRates:
    """A density f mixed with a uniform one, f̄ = (1 − ρ) f + ρ; optionally uniform early or late in training.

    u ≤ ρ becomes the uniform rate u/ρ, and u > ρ the quantile of f at (u − ρ)/(1 − ρ). So both components of the
    mixture are stratified, and the fraction ρ is exact.
    """

    uniform_share: float = param(0.0, help="ρ, fraction of the sequences with a uniform mask rate", ge=0, le=1)
    uniform_until: float = param(
        0.0, help="training progress up to which all rates are uniform; 0 disables this", ge=0, le=1
    )
    uniform_from: float = param(
        1.0, help="training progress from which all rates are uniform; 1 disables this", ge=0, le=1
    )

    def __attrs_post_init__(self) -> None:
        if self.uniform_until > self.uniform_from:
            raise ValueError(
                f"uniform_until must be at most uniform_from, not {self.uniform_until} and {self.uniform_from}"
            )

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return whether the first `done` steps are the same when training for `steps` and for `more` steps."""
        return (self.uniform_until, self.uniform_from) == (0, 1)

    @property
    def finite_variance(self) -> bool:
        """Whether ∫ 1/f̄ dr is finite: with ρ > 0, since f̄ ≥ ρ, if all rates are uniform, or if it is finite for f."""
        return self.uniform_share > 0 or self.uniform_until == self.uniform_from or self.reaches_ends

    @property
    @abstractmethod
    def reaches_ends(self) -> bool:
        """Whether ∫ 1/f dr is finite, that is, whether f vanishes slowly enough towards the rates 0 and 1."""


@component
class LogitNormalRates(_MixedRates):
    """Logit-normal mask rates r = σ(m + s·Φ⁻¹(u)), with few rates near 0 and 1 (Esser et al., section 3.1).

    Near 0 there are few masked tokens to learn from; near 1 there is almost no context. The density falls faster than
    any power towards both ends.
    """

    name = "logit_normal"
    summary = "logit-normal mask rates, like the times in Stable Diffusion 3: middle rates are more frequent"
    refs = ("arXiv:2403.03206",)

    location: float = param(0.0, help="m, location: the median rate is σ(m), 0.5 at m = 0", ge=-5, le=5)
    scale: float = param(1.0, help="s, scale in log-odds; 1.7 is nearly uniform, 0.3 is narrow", gt=0, le=3)
    reaches_ends: ClassVar[bool] = False
    network = "atat_zoo.modeling.mask_rates.mask_rate_networks:LogitNormalRatesModule"


@component
class BetaRates(_MixedRates):
    """Beta-distributed mask rates, f(r) = r^(a−1) (1 − r)^(b−1) / B(a, b).

    a = b = 1 is uniform, and a > b favours high rates. ∫ 1/f dr is finite if a < 2 and b < 2.
    """

    name = "beta"
    summary = "beta-distributed mask rates, to favour low, middle or high rates"
    refs = ("arXiv:2410.24164",)
    network = "atat_zoo.modeling.mask_rates.mask_rate_networks:BetaRatesModule"

    a: float = param(2.0, help="a; values above 1 make low rates rarer, values below 1 more frequent", ge=0.5, le=50)
    b: float = param(2.0, help="b; values above 1 make high rates rarer, values below 1 more frequent", ge=0.5, le=50)

    @property
    @override
    def reaches_ends(self) -> bool:
        return self.a < 2 and self.b < 2


@component
class AdaptiveRates(_MixedRates):
    """f(r) ∝ ε + max(0, r·(H₁ − CE(r))): mask rates are more frequent where the model gains more from context.

    CE(r) is the running mean of the cross-entropy at masked tokens in sequences with about this rate, and H₁ is the
    unigram entropy of the training tokens. H₁ − CE(r) is the gain from context per masked token, and r times this
    difference is the gain per token. Near r = 0 few tokens are masked, and near r = 1 there is little context; the
    maximum in between moves during training. f is piecewise constant over bins, and uniform until every bin has
    received a masked token.
    """

    name = "adaptive"
    summary = "adaptive mask rates: more frequent where the context lowers the running loss most"
    refs = ("arXiv:2211.15089", "arXiv:2102.09672")
    reaches_ends: ClassVar[bool] = True
    network = "atat_zoo.modeling.mask_rates.mask_rate_networks:AdaptiveRatesModule"

    bins: int = param(32, help="number of bins of the mask rate", ge=2, le=1024)
    floor: float = param(0.05, help="ε in nats; large values approach uniform rates", gt=0, le=100)
    decay: float = param(0.99, help="decay of the running mean per step", ge=0, lt=1)
