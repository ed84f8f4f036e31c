"""Uncertainty metrics of a prediction, from 0 (one certain token) to 1 (uniform).

Each metric is invariant to permuting the vocabulary and, up to rounding, to adding a constant to the logits. V is the
number of tokens whose logit is not −∞; if there is only one, the uncertainty is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.registry import component, component_base, param, values_of

if TYPE_CHECKING:
    from torch import Tensor


class Uncertainty(Protocol):
    """A component of kind `uncertainty`."""

    name: str

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        ...


@component_base
class _Metric(Uncertainty):
    """An uncertainty metric computed by the function of its name in `METRICS`."""

    @override
    def __call__(self, logits: Tensor) -> Tensor:
        return METRICS[self.name](*probabilities(logits))


@component
class EntropyUncertainty(_Metric):
    """The entropy as a fraction of its maximum, Σ −p log p / log V."""

    name = "entropy"
    summary = "entropy of the prediction divided by log V"
    refs = ("doi:10.1002/j.1538-7305.1948.tb01338.x",)


@component
class VarianceUncertainty(_Metric):
    """(V/(V−1))(1 − Σp²): the Gini impurity, or total variance of the one-hot encoded token, scaled to [0, 1].

    The variance of the probabilities themselves would be largest for a certain prediction.
    """

    name = "variance"
    summary = "total variance of the one-hot encoded token, scaled: (V/(V−1))(1 − Σp²)"


@component
class LogitVarianceUncertainty(Uncertainty):
    """1/(1 + Σ(ℓ − ℓ̄)²), with the logits ℓ of the V tokens and their mean ℓ̄: the order of the variance, reversed.

    The ATAT report takes a high variance of the logits for uncertainty, but a uniform prediction has the variance 0.
    """

    name = "logit_variance"
    summary = "decreasing function of the variance of the logits, 1/(1 + V · variance)"
    refs = ("ATAT",)

    @override
    def __call__(self, logits: Tensor) -> Tensor:
        finite, wide = logits.isneginf().logical_not_(), logits.double()
        count = finite.sum(-1)
        mean = wide.where(finite, 0.0).sum(-1) / count.clamp(min=1)
        return bounded(1 / (1 + (wide - mean[..., None]).where(finite, 0.0).square().sum(-1)), count)


@component
class ConfidenceUncertainty(_Metric):
    """(V/(V−1))(1 − max p): the probability of all but the most probable token, scaled to [0, 1]."""

    name = "confidence"
    summary = "1 − confidence, scaled: (V/(V−1))(1 − max p)"
    refs = ("arXiv:2202.04200",)


@component
class MarginUncertainty(_Metric):
    """1 − (p₁ − p₂) for the two most probable tokens; a tie gives 1."""

    name = "margin"
    summary = "1 − margin of the two most probable tokens, 1 − (p₁ − p₂)"
    refs = ("arXiv:2502.06768",)


@component
class CombinedUncertainty(Uncertainty):
    """The weighted mean of entropy, variance, confidence and margin; the weights are normalised."""

    name = "combined"
    summary = "weighted mean of entropy, variance, confidence and margin"

    entropy: float = param(1.0, help="weight of the entropy", ge=0)
    variance: float = param(1.0, help="weight of the variance", ge=0)
    confidence: float = param(1.0, help="weight of the confidence", ge=0)
    margin: float = param(1.0, help="weight of the margin", ge=0)

    def __attrs_post_init__(self) -> None:
        if not self.entropy + self.variance + self.confidence + self.margin > 0:
            raise ValueError("entropy, variance, confidence and margin all have weight 0; set one above 0")

    @override
    def __call__(self, logits: Tensor) -> Tensor:
        p, count = probabilities(logits)
        weights = values_of(self)
        total = sum(weights.values())
        mean = p.new_zeros(())
        for name, weight in weights.items():
            if weight > 0:
                mean = mean + weight / total * METRICS[name](p, count)
        return bounded(mean, count)


# Each metric as a function of the probabilities p [..., V] and the number V of tokens that take part, [...].


def _entropy(p: Tensor, count: Tensor) -> Tensor:
    import torch

    return bounded(torch.special.entr(p).sum(-1) / count.to(p.dtype).clamp(min=2).log(), count)


def _variance(p: Tensor, count: Tensor) -> Tensor:
    import torch

    return bounded((1 - torch.linalg.vecdot(p, p)) * (count / (count - 1).clamp(min=1)), count)


def _confidence(p: Tensor, count: Tensor) -> Tensor:
    return bounded((1 - p.amax(-1)) * (count / (count - 1).clamp(min=1)), count)


def _margin(p: Tensor, count: Tensor) -> Tensor:
    top = p.topk(min(2, p.shape[-1]), dim=-1).values
    return bounded(1 - (top[..., 0] - top[..., -1]), count)


METRICS = {"entropy": _entropy, "variance": _variance, "confidence": _confidence, "margin": _margin}


def probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of logits [..., V], in float32 or float64, and the number of those that are not −∞, [...]."""
    import torch

    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    count = logits.isneginf().logical_not_().sum(-1)
    return logits.softmax(-1, dtype=wide), count


def bounded(value: Tensor, count: Tensor) -> Tensor:
    """Return the value as float32, clamped to [0, 1]; 0 where `count`, the number of tokens, is below 2."""
    return value.clamp(0, 1).where(count > 1, 0.0).float()
