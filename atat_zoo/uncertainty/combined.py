"""A weighted mean of the four metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor


@component
class Combined:
    """The weighted mean of entropy, variance, confidence and margin.

    Weights are relative: they are divided by their sum. A metric of weight 0 is not
    computed; the softmax is computed once for all.
    """

    name = "combined"
    summary = "a weighted mean of entropy, variance, confidence and margin"
    refs = ()

    entropy: float = param(1.0, help="weight of the entropy", ge=0)
    variance: float = param(1.0, help="weight of the variance", ge=0)
    confidence: float = param(1.0, help="weight of the confidence", ge=0)
    margin: float = param(1.0, help="weight of the margin", ge=0)

    def __attrs_post_init__(self) -> None:
        """Refuse a mean of nothing."""
        if not self.entropy + self.variance + self.confidence + self.margin > 0:
            raise ValueError("one of entropy, variance, confidence and margin must have a weight above 0")

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the uncertainty, float32 [...] in [0, 1], of logits [..., V]."""
        from atat_zoo.uncertainty.confidence import Confidence
        from atat_zoo.uncertainty.distribution import bounded, probabilities
        from atat_zoo.uncertainty.entropy import Entropy
        from atat_zoo.uncertainty.margin import Margin
        from atat_zoo.uncertainty.variance import Variance

        p, count = probabilities(logits)
        metrics = (
            (self.entropy, Entropy()),
            (self.variance, Variance()),
            (self.confidence, Confidence()),
            (self.margin, Margin()),
        )
        total = sum(weight for weight, _ in metrics)
        mean = p.new_zeros(())
        for weight, metric in metrics:
            if weight > 0:
                mean = mean + weight / total * metric.of(p, count)
        return bounded(mean, count)
