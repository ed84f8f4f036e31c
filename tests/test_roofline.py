"""What a step moves and computes, counted on graphs whose figures are known, and what it would take on an H100."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.kernels import Work, handed, kernels
from benchmarks.roofline import Device, Step, main

N, D = 4096, 512  # float32: X bytes a tensor [N, D]
X = 4 * N * D


def counted(function, *inputs, mixed=False):
    return kernels(make_fx(function)(*inputs), "", mixed)


def test_what_stands_between_two_products_is_one_kernel():
    a, b = torch.randn(N, D), torch.randn(D, D)
    work = counted(lambda a, b: ((a @ b).tanh() * 2 + a) @ b, a, b)
    products = [one for one in work if "mm" in one.name]
    assert [one.flops for one in products] == [2 * N * D * D] * 2
    assert {one.bytes for one in products} == {2 * X + 4 * D * D}
    (joined,) = (one for one in work if "mm" not in one.name)
    assert joined.bytes == 3 * X  # a product and a are read, a tensor is written


def test_a_sum_over_rows_reads_all_of_it_again_unless_orders_are_mixed():
    def function(x):
        y = x * 2
        return y - y.sum(1, keepdim=True), y.sum(0)

    for mixed, times in ((False, 3), (True, 2)):
        moved = sum(one.bytes for one in counted(function, torch.randn(N, D), mixed=mixed))
        assert moved == pytest.approx(times * X, rel=0.01)


def test_a_kernel_takes_as_long_as_what_it_has_most_of():
    device = Device(bandwidth=100.0, products=10.0, peak=20.0)
    assert device.seconds(Work("", "", bytes=200, flops=5)) == 2
    assert device.seconds(Work("", "", bytes=200, flops=50)) == 5


def test_what_is_handed_to_the_backward_graph_is_counted_once_and_with_all_of_its_memory():
    def function(a, b):
        product = a @ b
        left, right = product.chunk(2, dim=1)
        return left.exp(), a, left, right, torch.var_mean(a, 1)[1]

    graph = make_fx(function)(torch.randn(N, D), torch.randn(D, D))
    # The first is an output of its own, the second an input.
    assert handed(graph, 1) == X + 4 * N


def test_an_eager_step_has_the_attention_kernel_of_a_gpu(capsys):
    main(["--eager", "--top", "1000", "backbone.layers=1"])
    printed = capsys.readouterr().out
    assert "aten._scaled_dot_product_flash_attention" in printed
    assert "aten._softmax" not in printed


@pytest.mark.slow
def test_a_compiled_step_of_the_small_preset_leaves_an_h100_at_work():
    """At 80 % of its bandwidth and 620 TFLOP/s; the pinned torch reads more than that of today.

    Each of its twelve layers takes what the second of two takes.
    """
    device = Device.named("H100 80GB HBM3")
    assert device == Device(pytest.approx(0.8 * 3.35e12), 620e12, 989.4e12)
    for mixed, most, share in ((False, 62.5e-3, 0.39), (True, 60e-3, 0.40)):
        one, two = (Step(mixed=mixed, overrides=(f"backbone.layers={layers}",)).work() for layers in (1, 2))
        of_all = ((sum(map(device.seconds, work)), needed) for work, needed, _ in (one, two))
        seconds, needed = (first + 11 * (second - first) for first, second in zip(*of_all, strict=True))
        assert 0.9 * most < seconds <= most
        assert needed / seconds / device.peak >= share
