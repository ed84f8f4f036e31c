"""The objective `adaptive`: its loss by its formula, its bounds by enumeration, and the order that it learns."""

import copy
import functools
import math

import pytest
import small_objectives
import torch
import torch.nn.functional as F
from small_objectives import BACKBONE

from atat_zoo.diffusion.adaptive_bound import FORMS
from atat_zoo.experiment import from_table
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.objectives.adaptive import AdaptiveObjective
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from tests.adaptive_exact import look_everywhere, order_form, own_time, timed_form

V, L, N = 5, 4, small_objectives.N  # vocabulary, length, rows of a global batch
CONTEXT = Context(vocabulary_size=V, length=L, width=16, steps=100, seed=5)
SHARP = {"temperature": 0.3, "bias": "left_to_right", "strength": 1.5}
batch = functools.partial(small_objectives.batch, seed=0, context=CONTEXT)


def build(objective=None, seed=0, random=True, context=CONTEXT, **parts):
    return small_objectives.build({"use": "adaptive"} | (objective or {}), seed, random, context, **parts)


def enumerated(module, tokens):
    """The bound of every sequence by all masks, float64 [B]."""
    was = module.training
    module.eval()
    with torch.no_grad():
        ce, log_reverse = look_everywhere(module.look, tokens, module.context.mask_id)
        log_w = module.log_weights(module.importance(tokens, torch.ones_like(tokens) > 0, None))
        # By its type: a copied module has a copy of the form.
        in_order = isinstance(module.form, type(FORMS["order"]))
        found = order_form(log_w, ce, log_reverse) if in_order else timed_form(own_time(log_w), ce, log_reverse)
    module.train(was)
    return found


def steps_at_once(number):
    """One batch that repeats the same texts 25 times: its loss is the mean over 25 batches."""
    return small_objectives.full_batch(batch(padded=False).tokens.repeat(25, 1), number)


# The loss


def by_position(module):
    """What of log w the model may know: −s · (bias_i − mean bias) + φ_i, float64 [L]."""
    bias = torch.arange(L).double() / (L - 1)
    return -module.strength * (bias - 0.5) + (0 if module.position is None else module.position.detach())


def plainly(module, given, weight):
    """The two terms of the loss by their formula, token by token, on the masks that the module drew."""
    with torch.no_grad():
        log_w = module.log_weights(module.importance(given.tokens, given.maskable, None))
        w = log_w.repeat(module.repeats, 1).exp().tolist()
        step, drawn = module.draw(given, log_w.repeat(module.repeats, 1))
        hidden = module.backbone(step.z, step.t)
        g = (module.order_head(hidden)[..., 0].double() + by_position(module)).exp().tolist()
        ce = F.cross_entropy(module.backbone.head(hidden).transpose(1, 2), step.x, reduction="none").tolist()
    diffusion = reverse = 0.0
    for i in range(len(step.x)):
        here, n = step.masked[i].nonzero()[:, 0].tolist(), int(step.maskable[i].sum())
        if not here:
            continue
        total, model = sum(w[i][j] for j in here), sum(g[i][j] for j in here)
        t = float(drawn.level[i])
        speed = sum(w[i][j] * t ** w[i][j] for j in range(L) if step.maskable[i, j])
        for j in here:
            share = w[i][j] / total
            own = n * share if module.form is FORMS["order"] else n * w[i][j] / speed
            c = {"bound": own, "nelbo": 1 / float(drawn.rate[i]), "simple": 1.0}[weight]
            diffusion += c * ce[i][j]
            if module.form is FORMS["order"]:
                reverse += n * share * math.log(share / (g[i][j] / model))
            else:
                reverse += n / speed * (w[i][j] * math.log(w[i][j] / g[i][j]) - w[i][j] + g[i][j])
    rows = len(step.x) * float(given.mean_maskable)
    return diffusion / rows, reverse / rows, step


@pytest.mark.parametrize(
    ("form", "weight", "draws"),
    [
        ("order", "bound", 1),
        ("order", "nelbo", 3),
        ("order", "simple", 3),
        ("timed", "bound", 3),
        ("timed", "nelbo", 1),
    ],
)
def test_the_loss_is_its_formula(form, weight, draws):
    module = build(SHARP | {"form": form, "weight": weight, "mask_samples": draws, "reverse_loss_weight": 0.7})
    for first in range(2):
        given = batch(first)
        diffusion, reverse, step = plainly(module, given, weight)
        found = module.loss(given)
        assert torch.equal(found["masked"], step.masked)
        masked = step.masked.view(draws, N, L)  # of each text as many tokens, and not the same
        assert (masked.sum(2) == masked[0].sum(1)).all() or form == "timed"
        assert draws == 1 or not (masked == masked[0]).all()
        assert float(found["diffusion_loss"]) == pytest.approx(diffusion, rel=1e-4)
        assert float(found["reverse_loss"]) == pytest.approx(reverse, rel=1e-4, abs=1e-6)
        total = diffusion + 0.7 * reverse + 0.1 * float(found["importance_loss"])
        assert float(found["loss"].detach()) == pytest.approx(total, rel=1e-4)
        importance = module.importance(given.tokens, given.maskable, None)
        torch.testing.assert_close(found["importance"], importance.detach().repeat(draws, 1))


# The bounds


# In the timed form a backbone that reads t would be told what enumeration cannot tell it.
@pytest.mark.parametrize(("form", "timed_backbone"), [("order", False), ("order", True), ("timed", False)])
def test_the_bound_agrees_with_enumeration(form, timed_backbone):
    module = build(SHARP | {"form": form}, backbone=BACKBONE | {"time_conditioning": timed_backbone}).eval()
    tokens = batch().tokens
    exact, groups = enumerated(module, tokens), 500
    tiled = tokens.repeat(groups, 1)
    with torch.no_grad():
        bounds = module.bound(tiled, torch.ones_like(tiled) > 0, torch.arange(len(tiled)), 2, ExactKBound())
    assert list(bounds) == ["nelbo", "adaptive"]
    found = bounds["adaptive"]
    means = found.nelbo.view(groups, N).mean(1)
    assert abs(float((means.mean() - exact.mean()) / (means.std() / math.sqrt(groups)))) < 3
    torch.testing.assert_close(found.contribution.sum(1), found.nelbo)


def test_a_timed_backbone_is_told_the_time_and_nothing_of_the_text():
    """In the timed form: t of the power path's own clock, in which a uniform text has the rate t."""
    module = build({"form": "timed"}, backbone=BACKBONE | {"time_conditioning": True}, noise="cosine").eval()
    given = batch(padded=False)
    log_w = torch.zeros(N, L, dtype=torch.float64)
    step, drawn = module.draw(given, log_w)
    torch.testing.assert_close(step.t, module.noise.time_at(step.rate))
    sharper, other = module.draw(given, log_w + torch.arange(L) - 1.5)
    torch.testing.assert_close(other.rate, drawn.rate)
    assert not torch.allclose(sharper.t, step.t, atol=1e-2)


# The weights


def test_forward_weights_by_hand():
    module = build({"temperature": 0.5, "bias": "left_to_right", "strength": 2.0, "learn_position": True})
    with torch.no_grad():
        module.position.copy_(torch.tensor([0.0, 1.0, 0.0, -1.0]))
    found = module.log_weights(torch.tensor([[0.5, 0.5, 1.0, 0.0]]))
    bias = [-2 * (b - 0.5) for b in (0, 1 / 3, 2 / 3, 1)]
    expected = torch.tensor([[bias[0], bias[1] + 1, bias[2] - 1, bias[3] + 1 - 1]], dtype=torch.float64)
    torch.testing.assert_close(found.detach(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", ["order", "timed"])
def test_where_no_text_enters_the_reverse_weights_are_right_from_the_start(form):
    module = build(
        {"bias": "left_to_right", "strength": 3.0, "learn_position": True, "form": form},
        estimator="uniform",
        random=False,
    )
    with torch.no_grad():
        module.position.normal_()
    assert float(module.loss(batch())["reverse_loss"]) == pytest.approx(0, abs=1e-6)


def test_the_denoiser_gives_distributions_and_reverse_weights_in_one_evaluation():
    module = build(SHARP).eval()
    tokens = batch().tokens.clone()
    tokens[:, ::2] = V
    where = tokens == V
    asked = []
    module.backbone.register_forward_hook(lambda *_: asked.append(1))
    denoise = module.denoiser()
    with torch.no_grad():
        log_p, log_reverse = denoise.predict_with_order(tokens, None, where)
        assert len(asked) == 1
        torch.testing.assert_close(denoise(tokens, None, where), log_p)
        _, expected = module.look(tokens, None, where, torch.zeros_like(tokens))
    torch.testing.assert_close(log_reverse, expected)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(len(log_p)))


# What trains what


def test_the_bounds_gradient_for_the_forward_weights_leaves_the_model_alone():
    given = batch(1)
    found = []
    for scale in (0.0, 5.0):
        module = build(SHARP | {"learn_importance": True, "learn_position": True, "importance_loss_weight": scale})
        module.loss(given)["loss"].backward()
        found.append({name: parameter.grad for name, parameter in module.named_parameters()})
    for key, gradient in found[0].items():
        if key.startswith(("backbone.", "order_head.")):
            torch.testing.assert_close(found[1][key], gradient, msg=key)
        else:
            assert not gradient.any(), key  # switched off, it learns nothing
            assert found[1][key].any(), key


@pytest.mark.slow
@pytest.mark.parametrize("form", ["order", "timed"])
def test_the_gradient_for_positions_is_that_of_the_enumerated_bound(form):
    module = build(
        SHARP | {"form": form, "learn_position": True, "importance_loss_weight": 1.0, "mask_samples": 2},
        estimator="uniform",
    ).eval()
    with torch.no_grad():
        # A head that is far from right, so that it shows whether the gradient goes through ŵ too.
        module.order_head.weight.mul_(3)
    whole = batch(padded=False)
    expected = torch.zeros(L, dtype=torch.float64)
    for i in range(L):
        ends = []
        for move in (1e-2, -1e-2):
            other = copy.deepcopy(module)
            with torch.no_grad():
                other.position[i] += move
            ends.append(float(enumerated(other, whole.tokens).mean()) / L)
        expected[i] = (ends[0] - ends[1]) / 2e-2
    found = torch.stack(
        [
            torch.autograd.grad(module.loss(steps_at_once(number))["loss"], module.position)[0].double()
            for number in range(60)
        ]
    )
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - expected).abs() / error).max() < 4
    # With ŵ held while φ moves the difference would be more than 4 errors in both forms.
    assert error.max() < 0.15


# What it must not depend on


def test_each_mask_of_a_text_has_a_dropout_of_its_own():
    """Of K identical rows too: only what is dropped differs then."""
    module = build({"mask_samples": 3}, backbone=BACKBONE | {"dropout": 0.5})
    given, rows = batch(4), torch.arange(N)
    module.draw(given, torch.zeros(3 * N, L, dtype=torch.float64))
    alike = given.tokens[:1].expand(3 * N, L)
    seen = module.backbone(alike, None).view(3, N, -1)
    assert all(not torch.equal(seen[i, b], seen[j, b]) for i, j in ((0, 1), (0, 2), (1, 2)) for b in rows)


def of_estimator(objective, weights=None, **parts):
    """The gradient that a step gives to the estimator."""
    module = build(SHARP | objective, **parts)
    module.load_state_dict(weights or {}, strict=False)
    module.loss(batch(3))["loss"].backward()
    return [p.grad for p in module.estimator.parameters()]


def test_an_estimator_learns_from_the_target_or_from_the_bound():
    """From the target alone, beside positions that learn from the bound; from the bound alone, whatever the target."""
    weights = build(SHARP).state_dict() | {"position": torch.zeros(L)}
    by_target, beside = (of_estimator({"mask_samples": 2, "learn_position": also}, weights) for also in (False, True))
    for one, other in zip(by_target, beside, strict=True):
        assert one.any()
        torch.testing.assert_close(one, other)
    targets = [of_estimator({"learn_importance": True}, target=target) for target in ("difficulty", "was_masked")]
    for one, other in zip(*targets, strict=True):
        assert torch.equal(one, other)


# Mistakes


def test_a_single_draw_cannot_learn_the_forward_weights():
    for learned in ("learn_importance", "learn_position"):
        with pytest.raises(ValueError, match="at least 2"):
            AdaptiveObjective(**{learned: True}, mask_samples=1)
        assert AdaptiveObjective(**{learned: True}).repeats == 2
    assert [AdaptiveObjective().repeats, AdaptiveObjective(mask_samples=3).repeats] == [1, 3]


TIMED = {"use": "transformer", "time_conditioning": True}


@pytest.mark.parametrize(
    ("estimator", "learned", "said"),
    [
        (TIMED, False, "reads the time"),
        ({"use": "hybrid", "learned": TIMED}, False, "reads the time"),
        ("uniform", True, "nothing to learn"),
        ("frequency", True, "nothing to learn"),
        ({"use": "transformer", "reads": "z"}, False, 'set estimator.use = "transformer" and'),
    ],
    ids=str,
)
def test_estimators_that_do_not_fit_are_refused(estimator, learned, said):
    objective = {"use": "adaptive", "learn_importance": learned}
    with pytest.raises(UserError, match=said):
        from_table({"name": "wrong", "objective": objective, "estimator": estimator}, where="here")
