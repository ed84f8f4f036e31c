"""Checks of metrics."""

import copy
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric as TorchMetric

from atat_zoo.measure.metric_states import Metrics
from atat_zoo.measure.metrics import Metric
from atat_zoo.results.evaluation import MetricValue
from atat_zoo.testing.batches import close


def check_metric(metric: Any) -> None:
    """Check the contract of a metric: one number of the same predictions, in any pieces, order, and number of ranks."""
    assert Metric in metric.__class__.__mro__, "a metric inherits from atat_zoo.measure.metrics.Metric"
    assert isinstance(metric.title, str), "a title is a str"
    assert metric.title, "a metric has a title"
    assert isinstance(metric.build(), TorchMetric), "build() returns a torchmetrics.Metric"
    predictions = _predictions()
    before = copy.deepcopy(predictions)
    whole = _found(_shown(metric, [predictions]))
    for name, tensor in predictions.items():
        assert torch.equal(tensor, before[name]), f"update() leaves its {name} as it is"
    assert torch.isfinite(torch.tensor(whole.value)), f"the value is a number, not {whole.value}"
    assert whole.stderr is None or whole.stderr >= 0, f"a standard error is not negative: {whole.stderr}"
    pieces = [{name: tensor[rows] for name, tensor in predictions.items()} for rows in torch.arange(60).split(17)]
    _same(_found(_shown(metric, pieces[::-1])), whole, "pieces in another order give the same")
    one, *others = (_shown(metric, shown) for shown in (pieces[::2], pieces[1::2], []))
    others[-1].show_nothing(5)
    for other in others:
        one.built[metric.title].merge_state(other.built[metric.title])
    _same(_found(one), whole, "several ranks, one of them without sequences, give what one gives")


def _predictions() -> dict[str, Tensor]:
    """Return 60 predictions of 5 tokens in 7 sequences."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(60, 5, generator=generator)
    return {
        "log_probs": (2 * drawn).log_softmax(1),
        "tokens": torch.randint(0, 5, (60,), generator=generator),
        "weight": torch.rand(60, dtype=torch.float64, generator=generator) + 0.1,
        "row": torch.randint(0, 7, (60,), generator=generator),
    }


def _shown(metric: Any, pieces: list[dict[str, Tensor]]) -> Metrics:
    metrics = Metrics([metric], "cpu")
    for piece in pieces:
        metrics.observer(torch.arange(7))(**piece)
    return metrics


def _found(metrics: Metrics) -> MetricValue:
    (value,) = metrics.values().values()
    return value


def _same(found: MetricValue, expected: MetricValue, promise: str) -> None:
    for one, other in ((found.value, expected.value), (found.stderr, expected.stderr)):
        if other is not None:
            assert one is not None, promise
            close(torch.tensor(one), torch.tensor(other), 1e-6, promise)
