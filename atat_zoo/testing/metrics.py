"""Checks of metrics."""

import copy
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric as TorchMetric
from torchmetrics import MetricCollection

from atat_zoo.measure.metrics import Metric, value_of
from atat_zoo.results.evaluation import MetricValue
from atat_zoo.testing.batches import close


def check_metric(metric: Any) -> None:
    """Check the contract of a metric: one number of the same predictions, in any pieces, order, and number of ranks."""
    assert Metric in metric.__class__.__mro__, "a metric inherits from atat_zoo.measure.metrics.Metric"
    assert isinstance(metric.title, str), "a title is a str"
    assert metric.title, "a metric has a title"
    built = metric.build()
    assert isinstance(built, TorchMetric), "build() returns a torchmetrics.Metric"
    predictions = _predictions()
    before = copy.deepcopy(predictions)
    whole = _computed(built, [predictions])
    for name, tensor in predictions.items():
        assert torch.equal(tensor, before[name]), f"update() leaves its {name} as they are"
    assert torch.isfinite(torch.tensor(whole.value)), f"the value is a number, not {whole.value}"
    assert whole.stderr is None or whole.stderr >= 0, f"a standard error is not negative: {whole.stderr}"
    pieces = [{name: tensor[rows] for name, tensor in predictions.items()} for rows in torch.arange(60).split(17)]
    _same(
        _computed(metric.build(), pieces[::-1]),
        whole,
        "the same predictions in pieces, in another order, give the same",
    )
    one, other = metric.build(), metric.build()
    for built, piece in zip((one, other, one, other), pieces, strict=True):
        _update(built, piece)
    one.merge_state(other)
    _same(value_of(one.compute()), whole, "two ranks give what one gives")


def _predictions() -> dict[str, Tensor]:
    """Return 60 predictions of 5 tokens in 7 sequences."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(60, 5, generator=generator)
    return {
        "log_probs": (2 * drawn).log_softmax(1),
        "tokens": torch.randint(0, 5, (60,), generator=generator),
        "weight": torch.rand(60, dtype=torch.float64, generator=generator) + 0.1,
        "sequence": torch.randint(0, 7, (60,), generator=generator),
    }


def _update(built: TorchMetric, predictions: dict[str, Tensor]) -> None:
    # As an evaluation does: each metric gets what its `update` names.
    MetricCollection({"metric": built}, compute_groups=False).update(**predictions)


def _computed(built: TorchMetric, pieces: list[dict[str, Tensor]]) -> MetricValue:
    for piece in pieces:
        _update(built, piece)
    return value_of(built.compute())


def _same(found: MetricValue, expected: MetricValue, promise: str) -> None:
    for one, other in ((found.value, expected.value), (found.stderr, expected.stderr)):
        if other is not None:
            assert one is not None, promise
            close(torch.tensor(one), torch.tensor(other), 1e-6, promise)
