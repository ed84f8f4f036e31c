"""A metric for predictions: how often the true token has at least a certain probability."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atat_zoo.evaluation.metrics import Metric
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric as TorchMetric

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderMetric(Metric):
    """Fraction of true tokens whose predicted probability is at least `least`."""

    name = "placeholder"
    summary = "fraction of true tokens with at least a certain predicted probability"
    refs = ()

    least: float = param(0.01, help="minimum probability", gt=0, le=1)

    def build(self) -> TorchMetric:
        """Return a TorchMetric that averages `score` over the predictions, with a standard error over sequences."""
        from atat_zoo.evaluation.metric_states import SequenceMean

        return SequenceMean(self.score)

    def score(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Return 1 where the true token [N] has p ≥ `least` under the log-probabilities [N, V], else 0: float64 [N]."""
        return (log_probs.gather(1, tokens[:, None])[:, 0] >= math.log(self.least)).double()


@hookimpl
def atat_zoo_metric() -> list[type]:
    """Return the metrics in this package."""
    return [PlaceholderMetric]
