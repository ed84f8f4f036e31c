"""Where an objective's parts are on a device without float64, which is a type here, as there is no such device."""

import attrs
import pytest
import torch
from small_objectives import batch
from torch import nn

from atat_zoo.modeling.objectives import placement


class Parts(placement.OnDevice):
    """A network, a part with a state in float64, and one that has neither."""

    def __init__(self):
        super().__init__()
        self.network, self.none = nn.Linear(2, 2), None
        self.table = nn.BatchNorm1d(2).double()
        self.mixed = nn.BatchNorm1d(2)
        self.mixed.register_buffer("state", torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("has", [True, False])
def test_what_is_in_float64_stays_where_float64_is(has, monkeypatch):
    monkeypatch.setattr(placement, "has_float64", lambda device: has)
    parts = Parts()
    names = list(parts.state_dict())
    assert parts.to(torch.float16) is parts
    types = {name: value.dtype for name, value in parts.state_dict().items() if value.is_floating_point()}
    stays = {name for name in types if name.startswith(("table", "mixed")) and not has}
    assert {name for name, dtype in types.items() if dtype == torch.float16} == set(types) - stays
    assert list(parts.state_dict()) == names  # every part is still there, in its place


def test_a_batch_goes_to_a_device_with_float64(monkeypatch):
    one = batch()
    assert placement.exact(one) is one
    monkeypatch.setattr(placement, "exact_device", lambda device: torch.device("meta"))
    there = placement.exact(one)
    moved = [name for name, value in attrs.asdict(one, recurse=False).items() if isinstance(value, torch.Tensor)]
    assert moved
    assert {getattr(there, name).device.type for name in moved} == {"meta"}
    assert there.progress == one.progress
