"""The training step of `mdlm` against a plain implementation, and what it must not depend on."""

import functools
import itertools
import math

import pytest
import small_objectives
import torch
from small_objectives import PARTS, L, N, V, full_batch

from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.diffusion.bounds import enumerate_masks, from_denoiser

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


@pytest.mark.parametrize("weight", ["nelbo", "simple"])
@pytest.mark.parametrize("correction", ["none", "horvitz_thompson"])
@pytest.mark.parametrize("progress", [0.1, 0.5, 0.9])
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


@pytest.mark.parametrize("correction", ["none", "horvitz_thompson"])
@pytest.mark.parametrize("parts", [{}, {"target": "was_masked"}, {"masking": "uniform", "curriculum": "none"}], ids=str)
def test_an_estimator_that_is_switched_off_learns_nothing(correction, parts):
    """Neither masks nor weights give it a gradient of the model's loss."""
    for weight in (0.0, 0.1):
        module = build({"importance_loss_weight": weight, "weight": "nelbo", "correction": correction}, **parts)
        module.loss(batch(3))["loss"].backward()
        learns = any(p.grad is not None and p.grad.any() for p in module.estimator.parameters())
        assert learns == (weight > 0)


# What is shown, and what is computed


def test_a_masked_token_is_never_shown_and_the_rest_always():
    module = build()
    watch = Watch(module.backbone)
    given = batch(1)
    found = module.loss(given)
    ((z, *_),) = watch.calls
    assert torch.equal(z == V, found["masked"])
    assert torch.equal(z[~found["masked"]], given.tokens[~found["masked"]])
    assert not (found["masked"] & ~given.maskable).any()


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


def test_a_time_conditioned_denoiser_takes_the_time_from_the_masks():
    module = build(backbone=PARTS["backbone"] | {"time_conditioning": True}).eval()
    tokens = batch().tokens.clone()
    tokens[:, :2] = V
    where = tokens == V
    denoise = module.denoiser()
    with torch.no_grad():
        assert torch.equal(denoise(tokens, None, where), denoise(tokens, torch.full((N,), 2 / L), where))
        assert not torch.allclose(denoise(tokens, None, where), denoise(tokens, torch.ones(N), where), atol=1e-4)
        log_probs, visible = denoise.everywhere(tokens, None, where, ~where)
        assert torch.equal(log_probs, denoise(tokens, None, where))
        at_visible = denoise(tokens, None, ~where).gather(1, tokens[~where][:, None])[:, 0]
        torch.testing.assert_close(visible, at_visible)


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
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


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


def test_an_estimator_without_parameters_is_not_asked_for_a_target():
    module = build(estimator="frequency", target="was_masked")
    assert not module.learns_importance
    module.target = None
    assert "importance_loss" not in module.loss(batch())


# The figures


def test_it_has_the_stage_and_the_strength_of_its_curriculum():
    module = build()
    assert module.stage(0.0) == "easy"
    assert module.stage(1.0) == "hard"
    strengths = [module.curriculum_strength(progress) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert strengths == [module.curriculum.strength(progress) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert strengths[1] < 0 == strengths[2] < strengths[3]
    assert build(curriculum="none").curriculum_strength(0.5) is None
