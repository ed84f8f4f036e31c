"""What a training takes, by formula, against numbers computed by hand; tests/test_scale.py has torch allocate them."""

import pytest

from atat_zoo.experiment import from_table
from atat_zoo.training import cost

V, WIDTH, LAYERS, HIDDEN, HEADS = 300, 64, 2, 192, 8
MATRICES = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)  # 81,920


def backbone(**more):
    table = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "mlp_ratio": 3.0, **more}
    return from_table({"name": "x", "backbone": table}).parts["backbone"]


def test_weights_have_a_gradient_two_moments_and_an_average_and_buckets_among_gpus():
    assert cost.state(10) == {"weights": 40, "gradients": 40, "AdamW": 80, "moving average": 40}
    assert [cost.buckets(10, gpus) for gpus in (1, 2, 8)] == [0, 40, 40]


@pytest.mark.parametrize(
    ("dropout", "compiled", "each"),
    [(0.0, True, 5224), (0.1, True, 5224), (0.0, False, 7272), (0.1, False, 7528)],
)
def test_the_layers_keep_so_many_bytes_of_a_token(dropout, compiled, each):
    for rows, length in ((1, 1), (3, 4)):
        found = cost.activations(backbone(dropout=dropout), rows, length, compiled=compiled)
        assert found == rows * length * each


def test_matrices_are_cast_and_gathered_layer_by_layer():
    spec = backbone()
    assert spec.matrices == MATRICES
    assert cost.casts(spec, V) == 202_240
    assert cost.gathered(spec, V) == 202_240 + 481_280


@pytest.mark.parametrize(("compiled", "logits"), [(True, 12_000), (False, 36_000)])
def test_the_head_has_its_logits_its_gradient_and_what_it_reads(compiled, logits):
    assert cost.head(backbone(), V, 10, compiled=compiled) == logits + 76_800 + 5_120


@pytest.mark.parametrize("compiled", [True, False])
def test_memory_is_the_sum_and_sharded_a_share_of_what_belongs_to_weights(compiled):
    spec = backbone()
    weights = spec.weights(V)
    read = cost.activations(spec, 2, 8, compiled=compiled) + cost.head(spec, V, 10, compiled=compiled)

    def memory(**how):
        return cost.memory(spec, V, 2, 8, 10, compiled=compiled, **how) - read

    assert memory() == 20 * weights + 202_240
    assert memory(gpus=4) == 24 * weights + 202_240
    assert memory(gpus=4, sharded=True) == 5 * weights + 683_520
