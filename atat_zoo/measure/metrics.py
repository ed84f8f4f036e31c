"""Metrics: numbers of a model's predictions of masked tokens, with their errors, on any number of ranks.

An evaluation updates a metric with what it computes anyway: the predictions of the N masked tokens of each batch under
each mask. Their weights are those of the bound, so that every number of masks k = 1 … n counts alike with `exact_k`;
where the likelihood is exact, every token is predicted once, with weight 1. V predictable tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torchmetrics import Metric as TorchMetric


class Metric(Protocol):
    """A component of the kind metric."""

    name: str

    @property
    def title(self) -> str:
        """What the number is called, in JSON; tables write it with spaces. No other metric of an evaluation has it."""
        return self.name

    def build(self) -> TorchMetric:
        """Return a `torchmetrics.Metric` whose states add up over batches and ranks, and do not depend on their order.

        Of these its `update` takes the arguments that it names: `log_probs`, float [N, V]; `tokens`, the true ones,
        int64 [N]; `weight`, float64 [N]; `sequence`, the number of each token's sequence in the held-out text, int64
        [N]. They come some positions at a time. Its `compute` returns a scalar, or a `MetricValue`.
        """
        ...


@component
class BrierMetric(Metric):
    """Σ_v (p_v − 1[v = x])², in [0, 2]: 0 is perfect, 2 the worst (Brier, 1950)."""

    name = "brier_score"
    summary = "squared distance of the predicted distribution to the true token, from 0 to 2; less is better"
    refs = ("https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2",)

    @override
    def build(self) -> TorchMetric:
        from atat_zoo.measure.metric_states import SequenceMean, brier

        return SequenceMean(brier)


@component
class TopAccuracyMetric(Metric):
    """The share of the tokens that are among the k most probable ones."""

    name = "top_accuracy"
    summary = "share of the tokens that are among the k most probable"
    refs = ("arXiv:1409.0575",)

    k: int = param(1, help="how many of the most probable tokens count", ge=1)

    @property
    @override
    def title(self) -> str:
        return f"top_{self.k}_accuracy"

    @override
    def build(self) -> TorchMetric:
        from functools import partial

        from atat_zoo.measure.metric_states import SequenceMean, among_top

        return SequenceMean(partial(among_top, k=self.k))


@component
class CalibrationErrorMetric(Metric):
    """Σ_b w_b |confidence_b − accuracy_b| / Σ w over bins of the largest probability (Guo et al., arXiv:1706.04599).

    A model that is right in 70 % of the cases in which it is sure by 70 % has 0.
    """

    name = "calibration_error"
    summary = "expected calibration error: how far the confidence is from the accuracy, in bins"
    refs = ("arXiv:1706.04599",)

    bins: int = param(15, help="bins of equal width", ge=1)

    @override
    def build(self) -> TorchMetric:
        from atat_zoo.measure.metric_states import Calibration

        return Calibration(self.bins)
