"""Noise schedules: the probability α(t) that a token is still visible at time t."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Protocol

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


class Noise(Protocol):
    """A component of kind `noise`: a schedule α(t) that decreases from t = 0 to t = 1."""

    name: str

    @property
    def complete(self) -> bool:
        """Whether α(0) = 1 and α(1) = 0; otherwise a bound that follows the schedule lacks a term or is infinite."""
        ...

    def alpha(self, t: Tensor) -> Tensor:
        """Return α(t) in [0, 1], with the shape and precision of t."""
        ...

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'(t) / (1 − α(t)), the weight of the cross-entropy in the NELBO, in the shape of t."""
        ...

    def time_at(self, rate: Tensor) -> Tensor:
        """Return the t at which 1 − α(t) = rate; rates outside the schedule's range are clamped to it."""
        ...


@component
class LinearNoise:
    """α(t) = 1 − t, so the mask rate 1 − α(t) equals t (MD4, table 4)."""

    name = "linear"
    summary = "linear mask rate: α = 1 − t"
    refs = ("arXiv:2406.07524", "arXiv:2406.04329")
    complete: ClassVar[bool] = True

    def alpha(self, t: Tensor) -> Tensor:
        """Return 1 − t."""
        return t.neg().add(1)

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'/(1 − α) = 1/t."""
        return t.reciprocal()

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = rate, clamped to [0, 1]."""
        return rate.clamp(0, 1)


@component
class CosineNoise:
    """α(t) = 1 − cos(π(1 − t)/2) (MD4, table 4); the mask rate is sin(πt/2).

    Reversed in time, this is MaskGIT's schedule.
    """

    name = "cosine"
    summary = "cosine: α = 1 − cos(π(1 − t)/2)"
    refs = ("arXiv:2406.04329", "arXiv:2202.04200")
    complete: ClassVar[bool] = True

    def alpha(self, t: Tensor) -> Tensor:
        """Return 1 − cos(π(1 − t)/2), computed as 1 − sin(πt/2), which is exact at both ends."""
        return t.mul(math.pi / 2).sin().neg().add(1).clamp(0, 1)

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'/(1 − α) = (π/2) cot(πt/2)."""
        return t.mul(math.pi / 2).tan().reciprocal().mul(math.pi / 2)

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = (2/π) arcsin(rate)."""
        return rate.clamp(0, 1).asin().mul(2 / math.pi)


@component
class CosineSquaredNoise:
    """α(t) = cos²(πt/2) (MDLM, appendix E.1); the mask rate is sin²(πt/2), symmetric about t = 1/2."""

    name = "cosine_squared"
    summary = "squared cosine: α = cos²(πt/2)"
    refs = ("arXiv:2406.07524",)
    complete: ClassVar[bool] = True

    def alpha(self, t: Tensor) -> Tensor:
        """Return cos²(πt/2), computed as (1 + cos(πt))/2, which is exact at both ends."""
        return t.mul(math.pi).cos().add(1).div(2)

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'/(1 − α) = π cot(πt/2)."""
        return t.mul(math.pi / 2).tan().reciprocal().mul(math.pi)

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = (2/π) arcsin √rate."""
        return rate.clamp(0, 1).sqrt().asin().mul(2 / math.pi)


@component
class PolynomialNoise:
    """α(t) = 1 − t^w (MD4, table 4); w = 1 gives `linear`."""

    name = "polynomial"
    summary = "polynomial mask rate: α = 1 − t^w"
    refs = ("arXiv:2406.04329",)
    complete: ClassVar[bool] = True

    exponent: float = param(2.0, help="w, exponent; values above 1 give low mask rates more time", gt=0, le=100)

    def alpha(self, t: Tensor) -> Tensor:
        """Return 1 − t^w."""
        return t.pow(self.exponent).neg().add(1)

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'/(1 − α) = w/t."""
        return t.reciprocal().mul(self.exponent)

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = rate^(1/w)."""
        return rate.clamp(0, 1).pow(1 / self.exponent)


@component
class GeometricNoise:
    """α(t) = exp(−σ(t)), σ(t) = σ_min^(1−t) σ_max^t (SEDD, section 5; MD4, table 4); no mask rate is 0 or 1."""

    name = "geometric"
    summary = "geometric noise between σ_min and σ_max: α = exp(−σ_min^(1−t) σ_max^t)"
    refs = ("arXiv:2310.16834", "arXiv:2406.04329")
    complete: ClassVar[bool] = False

    sigma_min: float = param(1e-4, help="σ_min, total noise at t = 0", ge=1e-9, le=100)
    sigma_max: float = param(20.0, help="σ_max, total noise at t = 1", ge=1e-9, le=100)

    def __attrs_post_init__(self) -> None:
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min must be less than sigma_max, not {self.sigma_min} and {self.sigma_max}")

    def _sigma(self, t: Tensor) -> Tensor:
        return t.mul(self._slope).add(math.log(self.sigma_min)).exp()

    @property
    def _slope(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def alpha(self, t: Tensor) -> Tensor:
        """Return exp(−σ(t))."""
        return self._sigma(t).neg().exp()

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'/(1 − α) = σ'/(exp(σ) − 1)."""
        sigma = self._sigma(t)
        return sigma * self._slope / sigma.expm1()

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = log(σ/σ_min)/log(σ_max/σ_min) with σ = −log(1 − rate)."""
        sigma = rate.clamp(0, 1).neg().log1p().neg()
        return (sigma / self.sigma_min).log().div(self._slope).clamp(0, 1)


@component
class LogLinearNoise:
    """α(t) = 1 − (1 − ε)t, that is, σ(t) = −log(1 − (1 − ε)t) (SEDD and MDLM, with ε = 1e-3).

    A loss or bound that integrates over this schedule omits mask rates above 1 − ε. With ε = 0, it is `linear`.
    """

    name = "log_linear"
    summary = "log-linear noise, as in the code of SEDD and MDLM: linear up to a mask rate of 1 − ε"
    refs = ("arXiv:2310.16834", "arXiv:2406.07524")

    eps: float = param(1e-3, help="ε, the fraction of tokens still visible at t = 1", ge=0, lt=1)

    @property
    def complete(self) -> bool:
        """Whether ε is 0."""
        return self.eps == 0

    def alpha(self, t: Tensor) -> Tensor:
        """Return 1 − (1 − ε)t."""
        return t.mul(self.eps - 1).add(1)

    def weight(self, t: Tensor) -> Tensor:
        """Return −α'/(1 − α) = 1/t."""
        return t.reciprocal()

    def time_at(self, rate: Tensor) -> Tensor:
        """Return t = rate/(1 − ε), at most 1."""
        return rate.div(1 - self.eps).clamp(0, 1)
