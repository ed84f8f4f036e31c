"""Clipping by part: each of the two by its own norm."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atat_zoo.testing import check_algorithm
from atat_zoo.training.algorithms import GradientClippingAlgorithm


class State:
    """What the algorithm reads of Composer's state."""

    def __init__(self, model):
        self.model = model


def model(sizes):
    """A backbone of two layers and an estimator, nested as Composer has them, with gradients of these norms."""
    backbone, estimator = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), nn.Linear(3, 5)
    whole = nn.ModuleDict({"objective": nn.ModuleDict({"backbone": backbone, "estimator": estimator})})
    for part, size in zip((backbone, estimator), sizes, strict=True):
        for parameter in part.parameters():
            parameter.grad = torch.randn(parameter.shape)
        scale = size / norm(part)
        for parameter in part.parameters():
            parameter.grad *= scale
    return whole, backbone, estimator


def norm(part):
    return torch.cat([p.grad.flatten() for p in part.parameters()]).norm()


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 10))
def test_each_has_at_most_the_threshold_whatever_the_other_has(first, second, threshold):
    whole, *parts = model((first, second))
    before = [p.grad.clone() for p in whole.parameters()]
    GradientClippingAlgorithm(by="part", threshold=threshold).build().apply(None, State(whole), None)
    for part, size in zip(parts, (first, second), strict=True):
        assert norm(part).item() == pytest.approx(min(size, threshold), rel=1e-3)
    for old, parameter in zip(before, whole.parameters(), strict=True):
        turned = nn.functional.cosine_similarity(old.flatten(), parameter.grad.flatten(), dim=0)
        assert turned.item() == pytest.approx(1, abs=1e-4)


def test_without_an_estimator_it_is_clipping_by_norm():
    whole, backbone, _ = model((7.0, 3.0))
    del whole["objective"]["estimator"]
    clipped = [p.grad.clone() for p in backbone.parameters()]
    twin = [nn.Parameter(p.detach().clone()) for p in backbone.parameters()]
    for parameter, grad in zip(twin, clipped, strict=True):
        parameter.grad = grad
    nn.utils.clip_grad_norm_(twin, 1.0)
    GradientClippingAlgorithm(by="part", threshold=1.0).build().apply(None, State(whole), None)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(twin, backbone.parameters(), strict=True))


def test_conformance():
    check_algorithm(GradientClippingAlgorithm(by="part", threshold=0.1))
