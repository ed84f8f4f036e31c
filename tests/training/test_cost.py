"""FLOPs by formula, against those that torch counts; memory, by hand (tests/test_scale.py has torch allocate it)."""

import attrs
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from atat_zoo.experiment import from_table, load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.training import cost
from atat_zoo.training.cost import peak_flops, step_flops, utilisation
from tests.drawn import drawn_batch

V, ROWS, LENGTH = 300, 4, 32
TABLE = {"name": "counted", "data": {"length": LENGTH}, "train": {"batch_size": ROWS}, "backbone": {"preset": "nano"}}
# A shipped experiment of every objective. `adaptive` and `d3pm` also have a column of their own in the head, which the
# formula leaves out.
SHIPPED = ("adaptive_position", "autoregressive", "block", "d3pm", "mdlm", "mlm", "sedd", "sets", "strided")
SMALL = [f"train.batch_size={ROWS}", f"data.length={LENGTH}"]


def experiment_of(**tables):
    return from_table({**TABLE, **tables})


def check(experiment, *, rel, at_most=None):
    """Compare the formula with the FLOPs that torch counts in a step."""
    module = assemble(experiment, Context(vocabulary_size=V, length=LENGTH)).train()
    # torch counts the products of this attention as they are; fused ones compute some of them twice.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        figures = module.loss(drawn_batch(V, ROWS, LENGTH))
        figures["loss"].backward()
    flops, found = counter.get_total_flops(), step_flops(experiment, V, float(figures["mask_rate"]))
    if at_most:
        assert flops <= found < at_most * flops
    else:
        assert found == pytest.approx(flops, rel=rel)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_flops_of_an_objective_are_those_that_torch_counts(name):
    folder = "" if name == "sets" else "baselines/"
    check(load(f"{folder}{name}", [*SMALL, "backbone.ngram_prior=0"]), rel=1e-3 if name[:2] in ("ad", "d3") else 1e-6)


@pytest.mark.parametrize(
    ("tables", "rel"),
    [
        # What is done for t is done once a row: 26 D² a row of 32 tokens, each of them 96 D² and more.
        ({"backbone": {"layers": 2, "width": 64, "heads": 4, "time_conditioning": True}}, 0.05),
        ({"backbone": {"layers": 2, "width": 64, "heads": 4, "mlp_ratio": 2.5, "tied": True}}, 1e-6),
        # LoRA's own products are added, and none leads back to the embedding.
        ({"init_from": "runs/base", "backbone": {"preset": "nano", "lora_rank": 1}}, 0.05),
    ],
)
def test_so_are_those_of_other_backbones(tables, rel):
    if "init_from" in tables:
        pytest.importorskip("peft", reason="the extra atat-zoo[lora] is not installed")
    check(experiment_of(**tables), rel=rel)


def test_sets_that_read_tokens_twice_count_at_most_twice_and_an_estimator_as_nothing():
    check(load("sets", [*SMALL, "position_sets.use=random"]), rel=0, at_most=1.3)
    estimator = {"use": "transformer", "layers": 1, "width": 64, "heads": 2}
    with_one = experiment_of(estimator=estimator, masking={"use": "importance"})
    assert step_flops(with_one, V, 0.5) == step_flops(experiment_of(), V, 0.5)


def test_a_line_has_the_share_of_the_peak_where_both_are_known():
    line = {"mask_rate": 0.5, "tokens_per_second": 1000.0}
    experiment = experiment_of(train={"batch_size": ROWS, "peak_tflops": 0.25})
    assert peak_flops(experiment, "cpu", bf16=False) == 0.25e12
    expected = step_flops(experiment, V, 0.5) / (ROWS * LENGTH) * 1000
    found = utilisation(experiment, V, 5e9, 2, line)
    assert found["flops_per_second"] == pytest.approx(expected)
    assert found["utilisation"] == pytest.approx(expected / 1e10, abs=1e-4)
    assert utilisation(experiment, V, None, 1, line).keys() == {"flops_per_second"}
    assert utilisation(experiment, V, 1e12, 1, {"tokens_per_second": 1.0}) == {}
    plain = type("Plain", (), {"name": "plain"})()
    without = attrs.evolve(experiment, parts={**experiment.parts, "backbone": plain})
    assert utilisation(without, V, 1e12, 1, line) == {}


@pytest.mark.parametrize(
    ("device", "name", "bf16", "peak"),
    [
        ("cpu", "", True, None),
        ("cuda:0", "NVIDIA H100 80GB HBM3", True, 989.4e12),
        ("cuda:0", "NVIDIA H100 80GB HBM3", False, None),
        ("cuda:0", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", True, None),
    ],
)
def test_the_peak_is_that_of_the_device_s_name_in_bf16(monkeypatch, device, name, bf16, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(experiment_of(), device, bf16) == peak


# Memory

WIDTH, LAYERS, HIDDEN = 64, 2, 192
MATRICES = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)  # 81,920


def backbone(**more):
    table = {"layers": LAYERS, "width": WIDTH, "heads": 8, "mlp_ratio": 3.0, **more}
    return from_table({"name": "x", "backbone": table}).parts["backbone"]


@pytest.mark.parametrize(
    ("dropout", "compiled", "each"),
    [(0.0, True, 5224), (0.1, True, 5224), (0.0, False, 7272), (0.1, False, 7528)],
)
def test_the_layers_keep_so_many_bytes_of_a_token(dropout, compiled, each):
    for rows, length in ((1, 1), (3, 4)):
        found = cost.activations(backbone(dropout=dropout), rows, length, compiled=compiled)
        assert found == rows * length * each


@pytest.mark.parametrize(("compiled", "logits"), [(True, 12_000), (False, 36_000)])
def test_memory_is_the_sum_and_sharded_a_share_of_what_belongs_to_weights(compiled, logits):
    """A gradient, two moments and an average of each weight, and buckets among GPUs; matrices are cast and gathered."""
    spec = backbone()
    weights = spec.weights(V)
    head = cost.head(spec, V, 10, compiled=compiled)
    assert head == logits + 76_800 + 5_120
    read = cost.activations(spec, 2, 8, compiled=compiled) + head

    def memory(**how):
        return cost.memory(spec, V, 2, 8, 10, compiled=compiled, **how) - read

    assert (spec.matrices, cost.casts(spec, V), cost.gathered(spec, V)) == (MATRICES, 202_240, 202_240 + 481_280)
    assert memory() == 20 * weights + 202_240
    assert memory(gpus=4) == 24 * weights + 202_240
    assert memory(gpus=4, sharded=True) == 5 * weights + 683_520
