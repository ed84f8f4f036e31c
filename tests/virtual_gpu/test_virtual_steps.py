"""A training step of every objective, and of every part that one can have, on a virtual GPU: it never waits for it.

What cannot be otherwise is in `WAITING`.
"""

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.diffusion import chunks
from atat_zoo.modeling.objectives import denoising
from atat_zoo.testing import EXAMPLES
from tests.modeling.objectives.small_objectives import BACKBONE, BASELINES, PARTS, batch, build
from tests.virtual_gpu.context import CONTEXT, V
from tests.virtual_gpu.device import CUDA, NoFloat64Error, VirtualGPU, on_cpu, to_gpu

pytestmark = pytest.mark.slow

READS_Z = {"estimator": PARTS["estimator"] | {"reads": "z"}}
MDLM = {"use": "mdlm", "correction": "horvitz_thompson"}
ADAPTIVE = {"use": "adaptive", "bias": "running"}
LEARNED = {"learn_importance": True, "learn_position": True, "weight": "nelbo"}
SETS = (BASELINES["sets"], READS_Z)
RANDOM_SETS = (BASELINES["sets"] | {"subset_share": 0.2}, READS_Z | {"position_sets": {"use": "random", "sets": 3}})

# Cases: an objective, and the parts that are not those of `PARTS`.
OBJECTIVES = {
    **{name: (table, {}) for name, table in BASELINES.items()},
    "mdlm": (MDLM, {}),
    "adaptive": (ADAPTIVE, {}),
    "sets": SETS,
    # What an objective computes otherwise by its own parameters.
    "mdlm on z": (MDLM | {"correction": "none", "weight": "simple"}, {"masking": "reveal", **READS_Z}),
    "sedd simple": (BASELINES["sedd"] | {"weight": "simple"}, {}),
    "sets random": RANDOM_SETS,
    "adaptive timed": (ADAPTIVE | {"form": "timed"}, {}),
    "adaptive learned": (ADAPTIVE | LEARNED | {"mask_samples": 3}, {}),
    "adaptive bound": (ADAPTIVE | LEARNED | {"weight": "bound", "form": "timed"}, {}),
}
NETWORKS = {
    "time": {kind: PARTS[kind] | {"time_conditioning": True} for kind in ("backbone", "estimator")},
    **{
        str(change): {"backbone": BACKBONE | change}
        for change in (
            {"dropout": 0.5, "tied": True},
            {"ngram_prior": 2, "output_bias": "unigram"},
            {"checkpoint_activations": True},
            {"local_heads": 1},
        )
    },
}
# The kinds of part that a step of `mdlm` has; position sets are tried in one of `sets`.
KINDS = ("noise", "mask_rates", "estimator", "masking", "mask_drawing", "curriculum", "target")
OWN = {
    ("estimator", "hybrid"): {"learned": PARTS["estimator"]},
    ("estimator", "term_bias"): {"words": ["cab"], "base": PARTS["estimator"]},
    ("estimator", "transformer"): PARTS["estimator"] | {"own_embedding": True},
}
# Parts that want another estimator, and cases of their own.
APART = {"reveal": {"masking": "reveal", **READS_Z}, "planner_aware": {"curriculum": "planner_aware"}}
APART["planner_aware"] |= {"estimator": "uniform"}


def tables(kind):
    """Return a table of each part of a kind."""
    zoo = Zoo.load()
    own = [name for name in zoo.names(kind) if zoo.describe(kind, name).distribution == "atat-zoo"]
    examples = {name: EXAMPLES.get((kind, name), lambda _: {})(None) | OWN.get((kind, name), {}) for name in own}
    return [{"use": name, **examples[name]} for name in own if name not in APART]


def cases():
    """Yield the cases by name: every objective and network, and every part of a kind, many of them in one step."""
    yield from OBJECTIVES.items()
    for name, parts in NETWORKS.items():
        yield f"mdlm, {name}", (MDLM, parts)
    yield "sets, neighbours", (SETS[0], READS_Z | NETWORKS["{'ngram_prior': 2, 'output_bias': 'unigram'}"])
    parts = {kind: tables(kind) for kind in KINDS}
    parts["masking"] += [{"use": "position", "bias": table} for table in tables("position_bias")]
    parts["target"].append({"use": "difficulty", "scale": "running"})
    for number in range(max(map(len, parts.values()))):
        yield f"parts {number}", (MDLM, {kind: of[number % len(of)] for kind, of in parts.items()})
    yield from ((name, (MDLM, parts)) for name, parts in APART.items())
    for table in tables("position_sets"):
        yield f"position_sets {table['use']}", (SETS[0], SETS[1] | {"position_sets": table})


CASES = dict(cases())
# Why the host waits in a step, how often in a micro-batch, and in which case it does.
WAITING = {
    ("nonzero", "diffusion/positions.py pairs"): (
        "the head reads the masked positions alone, and their number is the shape of what it reads",
        1,
        "mdlm",
    ),
    ("copy to the host", "diffusion/positions.py to_host"): (
        "how many carriers the rows need is the shape of what the network reads, where turns are drawn at random",
        1,
        "sets random",
    ),
}


def step(module, of):
    """Return the figures, gradients and state after a step."""
    module.begin_step()
    figures = module.loss(of)
    figures["loss"].backward()
    module.end_step(lambda total: None, 0.25)
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return [{name: value.detach() for name, value in figures.items()}, gradients, module.state_dict()]


def network(name):
    objective, parts = CASES[name]
    return build(objective, context=CONTEXT, **parts)


def both(name):
    """Return what a step gives on the CPU and on a virtual GPU, which has counted it."""
    module, again, of = network(name), network(name), batch(1, context=CONTEXT)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = step(module, of)
    with VirtualGPU() as gpu:
        module, of = to_gpu(again), to_gpu(of)
        with torch.no_grad():
            module.loss(of)  # what is made or moved once, when a training begins
        gpu.forget()
        return gpu, expected, step(module, of)


def check_without_float64(name, expected):
    """Check that with the network on a GPU without float64 a step gives the same."""
    with VirtualGPU(narrow=True):
        module = to_gpu(network(name))
        found = step(module, to_gpu(batch(1, context=CONTEXT)))
        assert {p.device for p in module.parameters()} == {CUDA}
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            torch.testing.assert_close(on_cpu(other[key]), value, rtol=1e-5, atol=1e-7, msg=key)


def test_a_planted_float64_is_caught(monkeypatch):
    monkeypatch.setattr(denoising, "exact_device", lambda device: device)  # times, masks and weights are drawn there
    with_state = next(name for name, (_, parts) in CASES.items() if "adaptive" in str(parts.get("mask_rates")))
    with pytest.raises(NoFloat64Error, match="no float64, at "):
        check_without_float64(with_state, None)


@pytest.mark.parametrize("name", CASES)
def test_a_step_waits_for_nothing_and_computes_what_it_computes_on_the_cpu(name):
    gpu, expected, found = both(name)
    allowed = {wait: most for wait, (_, most, _) in WAITING.items()}
    assert {wait: count for wait, count in gpu.waits.items() if count > allowed.get(wait, 0)} == {}
    for wait, (_, _, example) in WAITING.items():
        assert name != example or wait in gpu.waits  # what is listed happens
    # Nothing is uploaded, but for which rows go on where sets are in any order.
    assert sum(gpu.uploads.values()) == 2 * (("copy to the host", "diffusion/positions.py to_host") in gpu.waits)
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(on_cpu(other[key]), value), key
    check_without_float64(name, expected)


@pytest.mark.parametrize("name", ["d3pm", "adaptive", "mdlm, {'ngram_prior': 2, 'output_bias': 'unigram'}"])
def test_nor_does_it_wait_for_the_chunks_of_a_head(name, monkeypatch):
    monkeypatch.setattr(chunks, "LOGITS", 3 * V)
    monkeypatch.setattr(chunks, "ON_ACCELERATOR", 3 * V)
    test_a_step_waits_for_nothing_and_computes_what_it_computes_on_the_cpu(name)


def test_every_part_of_a_step_has_its_case():
    zoo = Zoo.load()
    tried = {table["use"] for table, _ in OBJECTIVES.values()}
    assert tried == {
        name for name in zoo.names("objective") if zoo.describe("objective", name).distribution == "atat-zoo"
    }
    taken = {kind for table, _ in OBJECTIVES.values() for kind in zoo.spec("objective", table).uses}
    assert taken - {*KINDS} == {"backbone", "position_sets"}
