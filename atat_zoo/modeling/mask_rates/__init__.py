"""MaskRates: which mask rates a training sees, and how often.

A row's rate is drawn from a density f on (0, 1], stratified over the rows of a step. A bound's own weight of a row is
1/(r·f(r)), so that the mean over the draws is the one over uniform rates:

    E_{r ~ f} [ g(r) / (r·f(r)) ]  =  ∫₀¹ g(r)/r dr

With weights of 1 no such claim is made: then f is how much each rate counts. A network that reads the time is told the
time at which the noise has the drawn rate; noise, bounds and samplers know nothing of rates. Evaluations neither.

Objectives with another law of their own take none: `mlm` masks one fixed share, `d3pm` draws one of its T steps,
`adaptive` the number of masks or the time of its own process, and `autoregressive` masks nothing.
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
    """A component of the kind mask_rates, or what its `build(context)` returns.

    One with tensors of its own has a `network` with `levels`; one with a state implements `StatefulComponent` there.
    """

    name: str

    @property
    def finite_variance(self) -> bool:
        """Whether ∫ 1/f dr is finite, a fact of the specification; by default it is.

        If not, a training with the bound's own weights has gradients of infinite variance, and is refused.
        """
        return True

    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        """Return rates, their times and the bound's weights, float32, in the shape of u; no random number is drawn.

        u is a uniform number in (0, 1] for each row, [B], or for each block, [B, K]; their strata become strata of f.
        The noise has the drawn rate at the time t, as far as it reaches. Progress is the completed share of the
        training, in [0, 1].
        """


@component
class NoiseRates(MaskRates):
    """Uniform times, with the mask rates of the noise schedule: r = 1 − α(u), weight −α'/(1 − α).

    The density of the rates is −1/α' at their time. It is uniform only for linear noise; with cosine noise, r =
    sin(πu/2), and high rates are more frequent than low ones.
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
    """Uniform mask rates on (0, 1], for any noise schedule: r = u, weight 1/r. Equal to `noise` for linear noise."""

    name = "uniform"
    summary = "uniform mask rates on (0, 1], for any noise schedule"
    refs = ("arXiv:2406.07524", "arXiv:2406.03736")

    @override
    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        rate = u.float()
        return NoiseLevels(t=noise.time_at(rate), rate=rate, weight=rate.reciprocal())


@component_base
class _MixedRates:
    """A density f of its own, mixed with a uniform share: f̄ = (1 − ρ) f + ρ; 1 in the stretches that are uniform.

    A u up to ρ becomes the uniform rate u/ρ, one above it the quantile of f at (u − ρ)/(1 − ρ): both parts are
    stratified, and the share is exact.
    """

    uniform_share: float = param(0.0, help="ρ, fraction of the sequences with a uniform mask rate", ge=0, le=1)
    uniform_until: float = param(
        0.0, help="training progress until which all rates are uniform; 0 means never", ge=0, le=1
    )
    uniform_from: float = param(
        1.0, help="training progress from which all rates are uniform; 1 means never", ge=0, le=1
    )

    def __attrs_post_init__(self) -> None:
        if self.uniform_until > self.uniform_from:
            raise ValueError(
                f"uniform_until must not exceed uniform_from, not {self.uniform_until} and {self.uniform_from}"
            )

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return whether `done` steps of a training of `steps` are those of `more`: no stretch is a share of it."""
        return (self.uniform_until, self.uniform_from) == (0, 1)

    @property
    def finite_variance(self) -> bool:
        """Whether ∫ 1/f̄ dr is finite: with a uniform share f̄ ≥ ρ, and without one it is a matter of f."""
        return self.uniform_share > 0 or self.uniform_until == self.uniform_from or self.reaches_ends

    @property
    @abstractmethod
    def reaches_ends(self) -> bool:
        """Whether ∫ 1/f dr is finite: f must not vanish too fast towards the rates 0 and 1."""


@component
class LogitNormalRates(_MixedRates):
    """Logit-normal mask rates r = σ(m + s·Φ⁻¹(u)): most in the middle, few near 0 and 1 (Esser et al., section 3.1).

    Near 0 almost everything is visible, and the few masked tokens teach little; near 1 there is almost no context. The
    density falls faster than any power towards both ends.
    """

    name = "logit_normal"
    summary = "logit-normal mask rates, as the times in Stable Diffusion 3: middle rates are more frequent"
    refs = ("arXiv:2403.03206",)

    location: float = param(0.0, help="m, location: the median rate is σ(m), 0.5 at m = 0", ge=-5, le=5)
    scale: float = param(1.0, help="s, scale in log-odds; 1.7 is nearly uniform, 0.3 is narrow", gt=0, le=3)
    reaches_ends: ClassVar[bool] = False
    network = "atat_zoo.modeling.mask_rates.mask_rate_networks:LogitNormalRatesModule"


@component
class BetaRates(_MixedRates):
    """f(r) = r^(a−1) (1 − r)^(b−1) / B(a, b); a = b = 1 is uniform, a > b prefers high rates.

    1/f has an integral where a < 2 and b < 2.
    """

    name = "beta"
    summary = "beta-distributed mask rates, for a preference for low, middle or high rates"
    refs = ("arXiv:2410.24164",)
    network = "atat_zoo.modeling.mask_rates.mask_rate_networks:BetaRatesModule"

    a: float = param(2.0, help="a; above 1 low rates are rarer, below 1 more frequent", ge=0.5, le=50)
    b: float = param(2.0, help="b; above 1 high rates are rarer, below 1 more frequent", ge=0.5, le=50)

    @property
    @override
    def reaches_ends(self) -> bool:
        return self.a < 2 and self.b < 2


@component
class AdaptiveRates(_MixedRates):
    """f(r) ∝ ε + max(0, r·(H₁ − CE(r))): mask rates are more frequent where the model gains more from context.

    CE(r) is the running mean of the cross-entropy at masked tokens of sequences with about this rate, and H₁ the
    unigram entropy of the training tokens. Their difference is the gain from context, and r times it the gain per token
    of the sequence. At r = 0 hardly any token is masked, at r = 1 there is no context; the maximum in between moves
    during training. f is constant over bins, and uniform until a token was masked in each of them.
    """

    name = "adaptive"
    summary = "adaptive mask rates: more frequent where the context lowers the running loss most"
    refs = ("arXiv:2211.15089", "arXiv:2102.09672")
    reaches_ends: ClassVar[bool] = True
    network = "atat_zoo.modeling.mask_rates.mask_rate_networks:AdaptiveRatesModule"

    bins: int = param(32, help="number of bins of the mask rate", ge=2, le=1024)
    floor: float = param(0.05, help="ε in nats; large approaches uniform rates", gt=0, le=100)
    decay: float = param(0.99, help="decay of the running mean per step", ge=0, lt=1)
