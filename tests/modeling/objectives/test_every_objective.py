"""What holds for every objective, whatever its parts: a finite loss of the global batch that trains all weights."""

import copy

import attrs
import pytest
import torch
from small_objectives import BACKBONE, BASELINES, PARTS, L, N, V, batch, build, part_of

DROPOUT = {"backbone": BACKBONE | {"dropout": 0.5}}
MDLM = {"use": "mdlm", "correction": "horvitz_thompson"}
ADAPTIVE = {"use": "adaptive", "temperature": 0.3, "bias": "left_to_right", "strength": 1.5}
LEARNED = {"learn_importance": True, "learn_position": True}
RATES = {"mask_rates": {"use": "adaptive", "bins": 2}}
RUNNING = {"curriculum": "dynamic", "target": {"use": "difficulty", "scale": "running"}}
SIMPLE = {"correction": "none", "weight": "simple"}
READS_Z = {"estimator": PARTS["estimator"] | {"reads": "z"}}
# An objective, and the parts that are not those of `PARTS`.
EVERY = {
    **{name: (table, READS_Z if name == "sets" else {}) for name, table in BASELINES.items()},
    **{f"{name} with dropout": (table, DROPOUT) for name, table in BASELINES.items() if name != "sets"},
    "sets with dropout": (BASELINES["sets"], DROPOUT | {"estimator": "uniform"}),
    "sets by importance": (BASELINES["sets"], READS_Z | {"position_sets": {"use": "by_importance", "sets": 2}}),
    "mdlm": (MDLM, {}),
    "mdlm with dropout": (MDLM, DROPOUT),
    "mdlm systematic": (MDLM, {"mask_drawing": "systematic"}),
    "mdlm with time": (MDLM, {kind: PARTS[kind] | {"time_conditioning": True} for kind in ("backbone", "estimator")}),
    "mdlm on z": (MDLM | SIMPLE, {"masking": "reveal", **READS_Z}),
    "mdlm on z by predicted loss": (MDLM | SIMPLE, {"masking": "reveal", "estimator": "loss_prediction"}),
    "sets by predicted loss": (BASELINES["sets"], {"estimator": "loss_prediction"}),
    "sedd with state": (BASELINES["sedd"], RATES),
    "block with state": (BASELINES["block"], RATES),
    "mdlm with state": (MDLM, RATES | RUNNING | {"masking": {"use": "position", "bias": "running"}}),
    "adaptive": (ADAPTIVE, DROPOUT),
    "adaptive timed": (ADAPTIVE | {"form": "timed"}, {}),
    "adaptive three draws": (ADAPTIVE | {"mask_samples": 3, "weight": "bound"}, DROPOUT),
    "adaptive learned": (ADAPTIVE | LEARNED | {"weight": "nelbo"}, {}),
    "adaptive learned timed": (ADAPTIVE | LEARNED | {"form": "timed"}, {}),
    "adaptive position beside a target": (ADAPTIVE | {"learn_position": True}, {}),
    "adaptive with state": (ADAPTIVE | {"bias": "running"}, {"target": RUNNING["target"]}),
}
STATEFUL = {"sedd with state": 1, "block with state": 1, "adaptive with state": 2, "mdlm with state": 4}
DETERMINISTIC = [name for name, (_, parts) in EVERY.items() if "dropout" not in str(parts)]


def made(name, **parts):
    objective, own = EVERY[name]
    return build(objective, **parts | own)


def gradients(module, pieces):
    """The loss of a batch from its pieces, its gradients, and the masks in the order of the rows."""
    module.zero_grad()
    total, masks = 0.0, []
    for piece in pieces:
        figures = module.loss(piece)
        loss = figures["loss"] * len(piece.tokens) / N
        loss.backward()
        total += float(loss.detach())
        masks.append(figures["masked"].view(-1, len(piece.tokens), L))
    order = torch.cat([piece.index for piece in pieces]).argsort()
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return total, found, torch.cat(masks, 1)[:, order]


@pytest.mark.parametrize("name", EVERY)
def test_micro_batches_and_ranks_add_up_to_the_batch(name):
    # Not with ranks as the target: where everything is masked all positions are alike, and rounding decides between
    # ties.
    module, whole = made(name, target="was_masked"), batch(3)
    expected, wanted, masks = gradients(module, [whole])
    pieces = torch.arange(N)[::2], torch.tensor([1, 3, 7]), torch.tensor([5])
    loss, found, same = gradients(module, [part_of(whole, rows) for rows in pieces])
    assert torch.equal(same, masks)
    # Kernels round differently for other shapes, and these weights are large; a row left out would be 0.1.
    assert loss == pytest.approx(expected, rel=1e-4)
    assert found.keys() == wanted.keys()
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in DETERMINISTIC])
def test_a_step_is_a_function_of_seed_and_index(name):
    module = made(name)
    torch.manual_seed(1)
    one = module.loss(batch(4))
    torch.manual_seed(2)
    two = module.loss(batch(4))
    assert torch.equal(one["loss"], two["loss"])
    assert torch.equal(one["masked"], two["masked"])
    if not name.startswith(("autoregressive", "strided")):  # these mask nothing by chance
        assert not torch.equal(one["masked"], module.loss(batch(5))["masked"])


@pytest.mark.parametrize(("name", "parts"), STATEFUL.items())
def test_parts_with_a_state_take_in_the_whole_step_once(name, parts):
    """Micro-batches on one rank are as one batch, and as ranks whose sums are reduced."""
    module, whole = made(name), batch(2)
    halves = [part_of(whole, rows) for rows in torch.arange(N).split(4)]
    fresh = copy.deepcopy(module.state_dict())
    pieces, *ranks = (copy.deepcopy(module) for _ in range(3))
    calls = []
    module.loss(batch(5))
    module.begin_step()  # of that batch nothing is left
    module.loss(whole)
    module.end_step(calls.append, 0.25)
    assert len(calls) == parts

    for half, rank in zip(halves, ranks, strict=True):
        pieces.loss(half)
        rank.loss(half)
    pieces.end_step(lambda total: None, 0.25)
    totals = [[total.clone() for total in rank.totals.values()] for rank in ranks]
    for rank, of_other in zip(ranks, reversed(totals), strict=True):
        rank.end_step(lambda total, of_other=of_other: total.add_(of_other.pop(0)), 0.25)
    expected = copy.deepcopy(module.state_dict())
    for other in (pieces, *ranks):
        for key, value in other.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6, msg=key)
    assert sum(not torch.equal(value, fresh[key]) for key, value in expected.items()) >= parts

    module.end_step(calls.append, 0.25)  # nothing is taken in twice, or in evaluation
    module.eval().loss(batch(3))
    module.end_step(calls.append, 0.25)
    assert len(calls) == parts
    assert all(torch.equal(value, expected[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", EVERY)
def test_every_weight_learns(name):
    module = made(name)
    if "state" in name:  # a running scale has a target from its second step on
        module.loss(batch(0))
        module.end_step(lambda total: None, 0.1)
    module.loss(batch(1))["loss"].backward()
    for key, parameter in module.named_parameters():
        # Not every token occurs, but the mask does.
        gradient = parameter.grad[V:] if key == "backbone.embedding.weight" else parameter.grad
        assert gradient.isfinite().all(), key
        assert gradient.any(), key


@pytest.mark.parametrize("name", EVERY)
def test_nothing_maskable_is_no_loss_and_no_nan(name):
    module = made(name)
    nothing = attrs.evolve(batch(), maskable=torch.zeros(N, L, dtype=torch.bool), mean_maskable=torch.tensor(1.0))
    figures = module.loss(nothing)
    assert all(value.isfinite().all() for value in figures.values())
    assert float(figures["loss"].detach()) == 0
    figures["loss"].backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is None or not parameter.grad.any(), key
    module.end_step(lambda total: None, 0.1)
    assert all(value.isfinite().all() for value in module.state_dict().values())


@pytest.mark.parametrize("name", ["mdlm", "sedd", "d3pm", "block"])
@pytest.mark.parametrize("noise", ["linear", "cosine", "polynomial", "geometric", "log_linear"])
def test_the_loss_is_finite_at_the_ends_of_every_schedule(name, noise):
    module = build(EVERY[name][0] | {"weight": "nelbo"}, noise=noise)
    t = torch.tensor([2.0**-53, 1e-30, 1e-7, 1e-4, 0.5, 1 - 2**-24, 1.0, 1.0])
    module.times, module.block_times = lambda index: t, lambda index, blocks: t[:, None].repeat(1, blocks)
    figures = module.loss(batch(padded=False))
    assert all(value.isfinite().all() for value in figures.values())
    figures["loss"].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_bf16_autocast_is_near_to_float32(name):
    module = made(name)
    exact = module.loss(batch(1))
    with torch.autocast("cpu", torch.bfloat16):
        figures = module.loss(batch(1))
    assert figures["token_loss"].dtype == figures["loss"].dtype == torch.float32
    assert float(figures["diffusion_loss"]) == pytest.approx(float(exact["diffusion_loss"]), rel=0.1)
