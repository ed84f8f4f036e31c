"""Model FLOPs by formula, against those that torch counts, and the share of a device's peak."""

import attrs
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from atat_zoo.experiment import from_table, load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.training import utilisation
from atat_zoo.training.utilisation import Utilisation, peak_flops, step_flops
from tests.drawn import drawn_batch

V, ROWS, LENGTH = 300, 4, 32
TABLE = {"name": "counted", "data": {"length": LENGTH}, "train": {"batch_size": ROWS}, "backbone": {"preset": "nano"}}
# A shipped experiment of every objective. `adaptive` and `d3pm` also have a column of their own in the head, which the
# formula leaves out.
SHIPPED = ("adaptive_position", "autoregressive", "block", "d3pm", "mdlm", "mlm", "sedd", "sets", "strided")


def experiment_of(**tables):
    return from_table({**TABLE, **tables})


def counted(experiment):
    """The FLOPs that torch counts in a step, and the share of the tokens that had logits."""
    module = assemble(experiment, Context(vocabulary_size=V, length=LENGTH)).train()
    batch = drawn_batch(V, ROWS, LENGTH)
    # torch counts the products of this attention as they are; fused ones compute some of them twice.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        figures = module.loss(batch)
        figures["loss"].backward()
    return counter.get_total_flops(), float(figures["mask_rate"])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_formula_is_what_torch_counts(name):
    folder = "" if name == "sets" else "baselines/"
    words = [f"train.batch_size={ROWS}", f"data.length={LENGTH}", "backbone.neighbours=0"]
    experiment = load(f"{folder}{name}", words)
    flops, rate = counted(experiment)
    tolerance = 1e-3 if name in ("adaptive_position", "d3pm") else 1e-6
    assert step_flops(experiment, V, rate) == pytest.approx(flops, rel=tolerance)


def test_sets_that_read_tokens_twice_count_at_most_twice():
    experiment = load("sets", [f"train.batch_size={ROWS}", f"data.length={LENGTH}", "position_sets.use=random"])
    flops, rate = counted(experiment)
    assert flops <= step_flops(experiment, V, rate) < 1.3 * flops


@pytest.mark.parametrize(
    "backbone", [{"time_conditioning": True}, {"mlp_ratio": 2.5, "tied": True, "output_bias": "zero"}]
)
def test_other_backbones(backbone):
    experiment = experiment_of(backbone={"layers": 2, "width": 64, "heads": 4, **backbone})
    flops, rate = counted(experiment)
    # What is done for t is done once a row: 26 D² a row of 32 tokens, each of them 96 D² and more.
    tolerance = 0.05 if "time_conditioning" in backbone else 1e-6
    assert step_flops(experiment, V, rate) == pytest.approx(flops, rel=tolerance)


def test_with_lora_the_backbone_s_own_weights_have_no_gradient():
    pytest.importorskip("peft", reason="the extra atat-zoo[lora] is not installed")
    experiment = from_table({**TABLE, "init_from": "runs/base", "backbone": {"preset": "nano", "lora_rank": 1}})
    flops, rate = counted(experiment)
    # LoRA's own products are added, and none leads back to the embedding.
    assert step_flops(experiment, V, rate) == pytest.approx(flops, rel=0.05)


def test_an_estimator_counts_as_nothing():
    estimator = {"use": "transformer", "layers": 1, "width": 64, "heads": 2}
    experiment = experiment_of(estimator=estimator, masking={"use": "importance"})
    flops, rate = counted(experiment)
    assert step_flops(experiment, V, rate) == step_flops(experiment_of(), V, rate) < flops


# Of a peak


def line(rate=0.5, speed=1000.0):
    return {"mask_rate": rate, "tokens_per_second": speed}


def test_a_given_peak_is_that_of_every_device(monkeypatch):
    experiment = experiment_of(train={"batch_size": ROWS, "peak_flops": 0.25})
    found = Utilisation(experiment, V, peak_flops(experiment, "cpu", bf16=False)).figures(line())
    expected = step_flops(experiment, V, 0.5) / (ROWS * LENGTH) * 1000
    assert found["flops_per_second"] == pytest.approx(expected)
    assert found["utilisation"] == pytest.approx(expected / 0.25e12, abs=1e-4)
    monkeypatch.setattr(utilisation.dist, "get_world_size", lambda: 2)
    halved = Utilisation(experiment, V, 1e10).figures(line())["utilisation"]
    assert halved == pytest.approx(expected / 2e10, abs=1e-4)


@pytest.mark.parametrize(
    ("device", "name", "bf16", "peak"),
    [
        ("cpu", "", True, None),
        ("cuda:0", "NVIDIA H100 80GB HBM3", True, 989.4e12),
        ("cuda:0", "NVIDIA H100 80GB HBM3", False, None),
        ("cuda:1", "NVIDIA A100-SXM4-80GB", True, 312e12),
        ("cuda:0", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", True, None),
        ("cuda:0", "Another 9000", True, None),
    ],
)
def test_where_the_peak_is_not_known_there_is_no_figure(monkeypatch, device, name, bf16, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    experiment = experiment_of()
    assert peak_flops(experiment, device, bf16) == peak
    found = Utilisation(experiment, V, peak).figures(line(speed=1e6))
    assert found["flops_per_second"] > 0
    assert ("utilisation" in found) == (peak is not None)


def test_a_backbone_without_a_formula_has_no_figures():
    class Plain:
        name = "plain"

    experiment = experiment_of()
    parts = {**experiment.parts, "backbone": Plain()}
    assert Utilisation(attrs.evolve(experiment, parts=parts), V, 1e12).figures(line()) == {}
    assert Utilisation(experiment, V, 1e12).figures({"tokens_per_second": 1.0}) == {}
