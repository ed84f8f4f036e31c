"""The moving average of the weights."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atat_zoo.training.lifecycle import MovingAverage


@given(decay=st.floats(0, 0.999), steps=st.integers(1, 30))
def test_it_is_the_formula_and_stays_where_it_is(decay, steps):
    """a ← d a + (1 − d) w with d = min(decay, (1 + k)/(10 + k)), in the memory in which it began."""
    net = nn.Linear(3, 2)
    average, places = MovingAverage(net, decay), []
    expected = [p.detach().double() for p in net.parameters()]
    for k in range(steps):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
        places.append([a.data_ptr() for a in average.average])
        average.batch_end(None, None)
        d = min(decay, (1 + k) / (10 + k))
        expected = [d * a + (1 - d) * p.detach().double() for a, p in zip(expected, net.parameters(), strict=True)]
    assert all(place == places[0] for place in places)
    for a, b in zip(average.average, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_it_is_on_the_device_that_is_asked_for():
    """Where the weights are: no step copies them to another one."""
    average = MovingAverage(nn.Linear(3, 2).to("meta"), 0.9, "meta")
    average.batch_end(None, None)
    assert {a.device.type for a in average.average} == {"meta"}
