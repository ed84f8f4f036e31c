"""All that a plugin needs: the conformance suite, and what is special about its parts."""

import pytest
import torch
from atat_zoo_example.rank import Rank

from atat_zoo.registry import Zoo
from atat_zoo.testing import cases


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-example"), ids=str)
def test_conformance(case):
    case.run()


def test_the_zoo_builds_it():
    assert Zoo.load().build("masking", {"use": "rank", "temperature": 0.5}) == Rank(temperature=0.5)


def test_only_the_order_of_importance_counts():
    importance = torch.tensor([[0.1, 0.7, 0.2, 0.7]])
    rate, maskable = torch.tensor([0.4]), torch.tensor([[True, True, True, True]])
    p = Rank(temperature=0.5).probabilities(importance, rate, maskable)
    squeezed = Rank(temperature=0.5).probabilities(0.49 + importance / 1e4, rate, maskable)
    assert torch.equal(p, squeezed)
    # Ranks ⅛, ¾, ⅜, ¾ of 1, so the weights are exp of twice that.
    weights = torch.tensor([[0.125, 0.75, 0.375, 0.75]]).mul(2).exp()
    torch.testing.assert_close(p, weights / weights.sum() * 1.6)
