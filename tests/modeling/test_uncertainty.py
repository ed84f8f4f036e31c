"""Golden numbers; ends and invariances are in the conformance suite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.modeling.uncertainty import (
    CombinedUncertainty,
    ConfidenceUncertainty,
    EntropyUncertainty,
    LogitVarianceUncertainty,
    MarginUncertainty,
    VarianceUncertainty,
    probabilities,
)

METRICS = [EntropyUncertainty(), VarianceUncertainty(), ConfidenceUncertainty(), MarginUncertainty()]
P = torch.tensor([0.5, 0.25, 0.125, 0.125])


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (EntropyUncertainty(), 1.75 / 2),  # bits over log2 4
        (VarianceUncertainty(), 4 / 3 * (1 - (1 / 4 + 1 / 16 + 2 / 64))),
        (ConfidenceUncertainty(), 4 / 3 * 0.5),
        (MarginUncertainty(), 0.75),
        # Logits of log2 −1, −2, −3, −3 around their mean −9/4.
        (LogitVarianceUncertainty(), 1 / (1 + math.log(2) ** 2 * (25 + 1 + 9 + 9) / 16)),
        (CombinedUncertainty(entropy=1.0, variance=0.0, confidence=0.0, margin=3.0), (1.75 / 2 + 3 * 0.75) / 4),
    ],
    ids=str,
)
def test_values_by_hand(metric, value):
    assert metric(P.log()).item() == pytest.approx(value, abs=1e-6)
    rows = torch.stack([P.log(), torch.zeros(4), torch.tensor([0.0, -2e3, -2e3, -2e3])])
    assert metric(rows).tolist() == pytest.approx([value, 1, 0], abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(any), st.integers(0, 2**31))
def test_combined_is_the_weighted_mean(weights, seed):
    logits = torch.randn(5, 17, generator=torch.Generator().manual_seed(seed)) * 2
    combined = CombinedUncertainty(**{metric.name: w for metric, w in zip(METRICS, weights, strict=True)})
    wanted = sum(w / sum(weights) * metric(logits).double() for w, metric in zip(weights, METRICS, strict=True))
    torch.testing.assert_close(combined(logits).double(), wanted, atol=1e-5, rtol=0)


def test_one_token_left_is_certain_and_excluded_tokens_do_not_count():
    one = torch.tensor([[-math.inf, 3.0, -math.inf]])
    logits = torch.cat([P.log(), torch.full((5,), -math.inf)])
    for metric in [*METRICS, LogitVarianceUncertainty(), CombinedUncertainty()]:
        assert metric(torch.zeros(2, 1)).tolist() == [0.0, 0.0]
        assert metric(one).tolist() == [0.0]
        assert metric(torch.full((2, 4), -math.inf)).tolist() == [0.0, 0.0]
        assert metric(logits).item() == pytest.approx(metric(P.log()).item(), abs=1e-6)
        assert metric(torch.zeros(7)).item() == pytest.approx(1, abs=1e-6)


def test_combined_without_weights_is_refused():
    with pytest.raises(ValueError, match="all have weight 0"):
        CombinedUncertainty(entropy=0.0, variance=0.0, confidence=0.0, margin=0.0)


@pytest.mark.parametrize("metric", [*METRICS, CombinedUncertainty()], ids=lambda metric: metric.name)
def test_a_tie_of_two_is_the_largest_and_half_precision_is_widened(metric):
    tie = torch.tensor([0.0, 0.0, -math.inf])
    assert metric(tie).item() == pytest.approx(1)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).bfloat16()
    torch.testing.assert_close(metric(logits), metric(logits.double()), atol=1e-6, rtol=0)
    assert probabilities(logits.double())[0].dtype == torch.float64
