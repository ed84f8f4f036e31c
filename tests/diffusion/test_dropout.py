"""Dropout by keys: the expectation is exact and nothing but seed, step and row matters."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from atat_zoo.diffusion.dropout import Dropout, _Masked, groups_of_sequences, set_keys
from atat_zoo.diffusion.randomness import sequence_keys


def rows(first, count, seed=0):
    return sequence_keys(seed, "dropout", torch.arange(first, first + count))


def dropped(p, x, keys):
    layer = Dropout(p)
    set_keys(layer, keys)
    return layer(x)


@pytest.mark.parametrize("p", [1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9])
def test_the_expectation_is_the_input(p):
    entries = 400_000
    y = dropped(p, torch.ones(100, entries // 100), rows(0, 100)).double()
    kept = max(1 - round(p * 65536) / 65536, 1 / 65536)  # something is kept at any p
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / kept), rtol=1e-6, atol=0)
    error = math.sqrt((1 - kept) / kept / entries)
    assert abs(y.mean().item() - 1) < 4 * error
    assert stats.binomtest(int((y > 0).sum()), entries, kept).pvalue > 1e-3


def test_entries_are_independent():
    y = dropped(0.5, torch.ones(5000, 32), rows(0, 5000)) > 0
    correlation = torch.corrcoef(y.double().T) - torch.eye(32)
    assert correlation.abs().max() < 5 / math.sqrt(5000)  # within one 64-bit number and between them
    correlation = torch.corrcoef(dropped(0.5, torch.ones(32, 5000), rows(0, 32)).double()) - torch.eye(32)
    assert correlation.abs().max() < 5 / math.sqrt(5000)


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), first=st.integers(0, 2**40), p=st.floats(0.05, 0.95))
def test_a_row_does_not_depend_on_its_batch(shape, first, p):
    x = torch.arange(1, 1 + 6 * math.prod(shape), dtype=torch.float32).view(6, *shape)
    together = dropped(p, x, rows(first, 6))
    for i in range(6):
        assert torch.equal(dropped(p, x[i : i + 1], rows(first + i, 1))[0], together[i])
    assert torch.equal(dropped(p, x.flip(0), rows(first, 6).flip(0)), together.flip(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.off, self.b = Dropout(0.5), Dropout(0.0), Dropout(0.5)

    def forward(self, x):
        return self.a(x), self.off(x), self.b(x), self.a(x)


def test_layers_and_calls_draw_by_themselves_and_repeat_with_their_keys():
    net, x = Net(), torch.ones(8, 64)
    set_keys(net, rows(0, 8))
    first = net(x)
    assert torch.equal(first[1], x)
    for i, j in ((0, 2), (0, 3), (2, 3)):
        share = (first[i] == first[j]).double().mean()
        assert 0.4 < share < 0.6
    set_keys(net, rows(0, 8))
    assert all(torch.equal(a, b) for a, b in zip(net(x), first, strict=True))
    set_keys(net, rows(8, 8))  # the rows of another step
    assert 0.4 < (net(x)[0] == first[0]).double().mean() < 0.6
    set_keys(net, rows(0, 8, seed=1))
    assert 0.4 < (net(x)[0] == first[0]).double().mean() < 0.6


def test_compiled_code_draws_the_mask_of_the_call(monkeypatch):
    layer, x = Dropout(0.5), torch.ones(8, 64)
    set_keys(layer, rows(0, 8))
    eager = [layer(x, call=call) for call in (3, 4)]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert all(torch.equal(layer(x, call=call), found) for call, found in zip((3, 4), eager, strict=True))


def test_in_evaluation_and_at_zero_it_is_the_identity():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(1e-9)(x) is x  # rounds to zero
    with pytest.raises(RuntimeError, match=r"dropout has no keys for this batch; call set_keys\(module, keys\) first"):
        Dropout(0.5)(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_type_is_kept_and_the_gradient_is_the_mask(dtype):
    x = torch.ones(4, 33, dtype=dtype, requires_grad=True)
    y = dropped(0.5, x, rows(0, 4))
    assert y.dtype == dtype
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize(("p", "entries"), [(1e-4, 4000), (0.3, 1), (0.5, 33), (0.9, 4000)])
def test_for_a_compiler_it_is_the_same_and_so_is_its_gradient(p, entries):
    x, keys = torch.randn(3, entries, generator=torch.Generator().manual_seed(2)), rows(0, 3)
    layer, one, two = Dropout(p), x.clone().requires_grad_(), x.clone().requires_grad_()
    for call in (1, 2):
        y, other = layer(one, call, keys), _Masked.apply(two, keys, call, layer.threshold)
        assert torch.equal(y, other)
        of_one, of_two = (torch.autograd.grad(each.square().sum(), of)[0] for each, of in ((y, one), (other, two)))
        torch.testing.assert_close(of_two, of_one)


def test_rows_in_groups_draw_as_they_do_together():
    """Also in a second pass: each group counts its calls from where the last pass ended."""
    x, groups = torch.ones(6, 32), [torch.tensor([4, 0]), torch.tensor([1, 2, 5]), torch.tensor([3])]
    net, apart = Net(), Net()
    for each in (net, apart):
        set_keys(each, rows(0, 6))
    for _ in range(2):
        together, found = net(x), [torch.zeros_like(x) for _ in range(4)]
        for group in groups_of_sequences(apart, groups):
            for into, drawn in zip(found, apart(x[group]), strict=True):
                into[group] = drawn
        assert all(torch.equal(a, b) for a, b in zip(together, found, strict=True))
    assert torch.equal(apart.a.keys, net.a.keys)
    assert list(groups_of_sequences(apart.eval(), groups)) == groups
