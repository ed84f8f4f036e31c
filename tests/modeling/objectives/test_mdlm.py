"""The training step of `mdlm` against a plain implementation, and what it must not depend on."""

import functools
import itertools
import math

import attrs
import pytest
import small_objectives
import torch
from small_objectives import PARTS, L, N, V, full_batch

from atat_zoo.diffusion.likelihood_bounds import enumerate_masks, from_denoiser
from atat_zoo.experiment import from_table
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.objectives import denoising
from atat_zoo.system.errors import UserError

batch = functools.partial(small_objectives.batch, seed=0)


def build(objective=None, seed=0, **parts):
    return small_objectives.build({"use": "mdlm"} | (objective or {}), seed, **parts)


class Watch:
    """Remembers what a module is called with."""

    def __init__(self, module):
        self.calls = []
        module.register_forward_hook(lambda _, args, out: self.calls.append((*args, out)))


def plainly(module, given, weight, correction):
    """The loss by its formula, token by token, on the masks that the module drew."""
    t = module.times(given.index)
    with torch.no_grad():
        importance = module.importance(given.tokens, given.maskable, t)
        step = module.mask(given, importance, module.levels(t, given))
        c = module.curriculum.weights(step, importance, given.progress)
        hidden = module.backbone(step.z, t)
    total = 0.0
    for i, j in itertools.product(range(len(given.tokens)), range(L)):
        if not step.masked[i, j]:
            continue
        logits = module.backbone.head(hidden[i, j]).detach().double()
        ce = float(logits.logsumexp(0) - logits[given.tokens[i, j]])
        omega = 1 / float(t[i]) if weight == "nelbo" else 1.0
        h = float(step.rate[i]) / float(step.p[i, j]) if correction == "horvitz_thompson" else 1.0
        total += float(c[i, j]) * h * omega * ce
    return total / (len(given.tokens) * float(given.mean_maskable)), step


@pytest.mark.parametrize(
    ("weight", "correction", "progress"),
    [
        ("nelbo", "none", 0.1),
        ("simple", "none", 0.9),
        ("nelbo", "horvitz_thompson", 0.9),
        ("simple", "horvitz_thompson", 0.5),
    ],
)
def test_the_loss_is_its_formula(weight, correction, progress):
    module = build({"weight": weight, "correction": correction})
    for first in range(3):
        given = batch(first, progress=progress)
        expected, step = plainly(module, given, weight, correction)
        assert step.masked.any()
        found = module.loss(given)
        assert float(found["diffusion_loss"]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert torch.equal(found["masked"], step.masked)
        importance = found["importance_loss"]
        assert float(found["loss"].detach()) == pytest.approx(
            float(found["diffusion_loss"] + 0.1 * importance), rel=1e-6
        )


@pytest.mark.slow
def test_under_uniform_masking_the_loss_estimates_the_bound():
    """Averaged over many steps it is the bound per token, which nothing else here is."""
    module = build(masking="uniform", curriculum="none", estimator="uniform").eval()
    whole = batch(padded=False)
    with torch.no_grad():
        bounds = enumerate_masks(from_denoiser(module.denoiser()), whole.tokens, mask_id=V)
        exact = float(bounds.sum() / whole.maskable.sum())
        steps = [full_batch(whole.tokens.repeat(25, 1), number) for number in range(60)]  # each as 25 batches
        losses = torch.tensor([float(module.loss(each)["loss"]) for each in steps])
    error = float(losses.std()) / math.sqrt(len(losses))
    assert abs(float(losses.mean()) - exact) < 3 * error
    assert error < 0.05 * exact


# What it must not depend on


# What is shown, and what is computed


def test_the_head_runs_at_masked_positions_only():
    module = build()
    watch = Watch(module.backbone.head)
    masked = int(module.loss(batch(1))["masked"].sum())
    ((hidden, logits),) = watch.calls
    assert hidden.shape == (masked, 16)
    assert logits.shape == (masked, V)
    assert 0 < masked < N * L
    watch.calls.clear()
    tokens = batch().tokens
    estimate = module.bound(tokens, torch.ones_like(tokens) > 0, torch.arange(N), 3, ExactKBound())["nelbo"]
    assert len(watch.calls) == 3
    assert sum(len(hidden) for hidden, _ in watch.calls) == int(estimate.loss_count.sum())


def test_a_drawing_cannot_mask_what_is_not_maskable():
    module = build()
    module.mask_drawing = lambda p, keys: torch.ones_like(p, dtype=torch.bool)
    given = batch()
    assert torch.equal(module.loss(given)["masked"], given.maskable)


# The correction


def test_horvitz_thompson_gives_every_token_the_same_expected_weight():
    rows = 40_000
    importance = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
    weights = {}
    for correction in ("none", "horvitz_thompson"):
        module = build({"correction": correction}, masking={"use": "importance", "temperature": 0.2})
        given = full_batch(torch.zeros(rows, L, dtype=torch.int64))
        step = module.mask(given, importance.expand(rows, L), module.levels(torch.full((rows,), 0.3), given))
        # The rate is kept, with the floor and without it.
        torch.testing.assert_close(step.p.mean(1), torch.full((rows,), 0.3))
        h = step.rate[:, None] / step.p if correction == "horvitz_thompson" else torch.ones(rows, L)
        weights[correction] = (step.masked * h).double().mean(0)
        if correction == "horvitz_thompson":
            assert (h <= 10).all()  # 1/ε
            error = ((h[0] ** 2 * step.p[0] - 0.09) / rows).sqrt()
            assert ((weights[correction] - 0.3).abs() < 4 * error).all()
    assert weights["none"].max() > 3 * weights["none"].min()


# Who learns from what


def test_the_backbone_learns_from_the_diffusion_loss_only():
    found = []
    for weight in (0.0, 1000.0):
        module = build({"importance_loss_weight": weight})
        module.loss(batch())["loss"].backward()
        found.append([p.grad.clone() for p in module.backbone.parameters()])
        learns = any(p.grad is not None and p.grad.any() for p in module.estimator.parameters())
        assert learns == (weight > 0), "neither masks nor weights give it a gradient"
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_loss_of_visible_tokens_is_added_without_subs():
    plain, both, given = build({}), build({"visible_loss_weight": 0.5}), batch(1)
    found, of_both = plain.loss(given), both.loss(given)
    masked = found["masked"]
    z, t = torch.where(masked, V, given.tokens), plain.times(given.index)
    logits = plain.logits(plain.head_inputs(z, t), given.tokens)
    copied = torch.nn.functional.cross_entropy(logits.transpose(1, 2), given.tokens, reduction="none")
    added = copied[given.maskable & ~masked].sum() / given.maskable.sum()
    torch.testing.assert_close(of_both["loss"] - found["loss"], 0.5 * added)
    torch.testing.assert_close(of_both["diffusion_loss"], found["diffusion_loss"])


def test_the_importance_loss_is_the_distance_to_the_target():
    module = build()
    given = batch(1)
    t = module.times(given.index)
    with torch.no_grad():
        importance = module.importance(given.tokens, given.maskable, t)
        step = module.mask(given, importance, module.levels(t, given))
        target, counted = module.target(step, module.dense_cross_entropy(step))
    rows = [float((importance - target)[i, counted[i]].square().mean()) for i in range(N) if counted[i].any()]
    assert float(module.loss(given)["importance_loss"]) == pytest.approx(sum(rows) / N, rel=1e-5)


# The figures


@pytest.mark.parametrize("has", [True, False])
def test_what_is_in_float64_stays_where_float64_is(has, monkeypatch):
    """A device is a type here, as there is no such device."""
    monkeypatch.setattr(denoising, "has_float64", lambda device: has)
    module = build(masking={"use": "position", "bias": "running"})
    names = list(module.state_dict())
    assert module.to(torch.float16) is module
    types = {name: value.dtype for name, value in module.state_dict().items() if value.is_floating_point()}
    stays = {name for name in types if name.startswith("masking.") and not has}
    assert {name for name, dtype in types.items() if dtype == torch.float16} == set(types) - stays
    assert list(module.state_dict()) == names


def test_a_batch_goes_to_a_device_with_float64(monkeypatch):
    one, module = batch(), build()
    assert module.begin(one) is one
    monkeypatch.setattr(denoising, "exact_device", lambda device: torch.device("meta"))
    there = module.begin(one)
    assert {each.device.type for each in (there.tokens, there.maskable, there.index, there.mean_maskable)} == {"meta"}
    assert there.progress == one.progress


def test_it_has_the_stage_and_the_strength_of_its_curriculum():
    module = build()
    assert module.stage(0.0) == "easy"
    assert module.stage(1.0) == "hard"
    strengths = [module.curriculum_strength(progress) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert strengths == [module.curriculum.strength(progress) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert strengths[1] < 0 == strengths[2] < strengths[3]
    assert build(curriculum="none").curriculum_strength(0.5) is None


ON_Z = {**PARTS["estimator"], "reads": "z"}


def module(masking="reveal", **objective):
    return build({"use": "mdlm", "weight": "simple", **objective}, estimator=ON_Z, masking=masking)


def with_other_tokens(given, where):
    return attrs.evolve(given, tokens=torch.where(where, (given.tokens + 1) % V, given.tokens))


@pytest.mark.parametrize("masking", ["reveal", {"use": "reveal", "excess": 3.0, "first": "hard"}, "uniform"], ids=str)
@pytest.mark.parametrize("progress", [0.1, 0.9])
def test_hidden_tokens_change_neither_mask_nor_weights(masking, progress):
    made = module(masking)
    for first in range(4):
        given = batch(first, progress=progress)
        levels = made.levels(made.times(given.index), given)
        step, importance = made.mask_batch(given, levels)
        assert step.masked.any()
        assert not (step.masked & ~given.maskable).any()
        weights = made.curriculum.weights(step, importance.detach(), progress)
        changed = with_other_tokens(given, step.masked)
        again, importance_again = made.mask_batch(changed, levels)
        assert torch.equal(again.masked, step.masked)
        assert torch.equal(importance_again, importance)
        assert torch.equal(made.curriculum.weights(again, importance_again.detach(), progress), weights)
        assert torch.equal(again.z, step.z)
        assert weights.std() > 0
        found = made.loss(given)
        assert torch.equal(found["masked"], step.masked)
        assert torch.equal(found["importance"], importance.detach())


def test_visible_tokens_change_the_mask():
    made, moved = module(), 0
    for first in range(4):
        given = batch(first, padded=False)
        levels = made.levels(made.times(given.index), given)
        step, _ = made.mask_batch(given, levels)
        again, _ = made.mask_batch(with_other_tokens(given, ~step.masked), levels)
        moved += int((again.masked != step.masked).sum())
        assert torch.equal(again.masked.sum(1), step.masked.sum(1))
    assert moved


@pytest.mark.parametrize("bf16", [False, True])
def test_the_estimator_learns_from_what_it_says_of_the_final_mask(bf16):
    made = module(importance_loss_weight=0.5)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = made.loss(batch(1))
    found["loss"].backward()
    assert all(p.grad.abs().max() > 0 for p in made.estimator.parameters())
    assert not made.backbone.embedding.weight.grad[V].isnan().any()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"masking": "importance", "estimator": ON_Z}, "needs the importance of the clean sequence"),
        (
            {"masking": "reveal"},
            'reads the clean sequence; set estimator.use = "transformer" and estimator.reads = "z"',
        ),
        (
            {"masking": "reveal", "estimator": ON_Z, "objective": {"use": "mdlm", "correction": "horvitz_thompson"}},
            'needs no correction; set correction to "none"',
        ),
        (
            {"masking": "reveal", "estimator": ON_Z, "mask_drawing": "systematic"},
            "mask_drawing: masking 'reveal' draws its masks itself; leave mask_drawing out",
        ),
    ],
    ids=["importance", "default", "correction", "drawing"],
)
def test_parts_that_do_not_go_together_are_refused(table, said):
    with pytest.raises(UserError) as caught:
        from_table({"name": "a", **table}, where="here")
    assert said in str(caught.value)
