"""The adaptive bound, sampled: against enumeration, against exact-k, and its gradients for the forward weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.diffusion.adaptive_bound import FORMS, estimate, forward_surrogate, log1mexp
from atat_zoo.diffusion.likelihood_bounds import average, exact_k, from_denoiser
from atat_zoo.diffusion.randomness import fold, sequence_keys, uniform
from atat_zoo.testing.toys import Hashed, toy
from tests.adaptive_exact import log_last, look_everywhere, order_form, own_time, subsets, timed_form
from tests.examples import at_most

JOINT = toy()
HASHED = Hashed(2)


def look(z, t, masked, x):
    """A model without sense: p_θ and ŵ are hashes of z."""
    log_p = HASHED(z, None, masked)
    return -log_p.gather(1, x[masked][:, None])[:, 0], 0.7 * HASHED(z, None, masked)[:, 0]


def uniform_look(z, t, masked, x):
    ce, log_reverse = look(z, t, masked, x)
    return ce, torch.zeros_like(log_reverse)


def weights(seed=3, size=0.8):
    """Forward weights of the 8 sequences, each its own."""
    return size * torch.randn(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def enumerated(form, log_w, ce, log_reverse):
    return order_form(log_w, ce, log_reverse) if form == "order" else timed_form(own_time(log_w), ce, log_reverse)


def tiled(log_w, groups):
    x = JOINT.states.repeat(groups, 1)
    return (
        x,
        torch.ones_like(x, dtype=torch.bool),
        log_w.repeat(groups, 1),
        sequence_keys(1, "test", torch.arange(len(x))),
    )


def run(form, model, x, maskable, log_w, keys, draws=1):
    return estimate(FORMS[form], model, x, maskable, log_w, keys, draws, mask_id=2, time_at=lambda r: r)


# Monte-Carlo against enumeration


@pytest.mark.parametrize("form", ["order", "timed"])
@pytest.mark.parametrize("draws", [1, 4])
def test_it_agrees_with_enumeration(form, draws):
    log_w, groups = weights(), 1500
    exact = enumerated(form, log_w, *look_everywhere(look, JOINT.states, 2))
    found = run(form, look, *tiled(log_w, groups), draws).nelbo.view(groups, 8)
    means = found.mean(1)
    assert abs(float((means.mean() - exact.mean()) / (means.std() / math.sqrt(groups)))) < 3
    # Every sequence by itself too.
    assert float(((found.mean(0) - exact).abs() / (found.std(0) / math.sqrt(groups))).max()) < 4


def test_tokens_that_are_not_maskable_take_no_part():
    """A sequence with padding costs what it costs alone, to the bit, and every term stands at its token."""
    x, maskable, rows, keys = tiled(weights(), 50)
    maskable[7] = False

    def padded(a, value):
        return torch.nn.functional.pad(a, (0, 2), value=value)

    def inner(z, t, masked, x):
        return look(z[:, :3], t, masked[:, :3], x[:, :3])

    for form in FORMS:
        plain = run(form, look, x, maskable, rows, keys, 3)
        wide = run(form, inner, padded(x, 1), padded(maskable, False), padded(rows, 50.0), keys, 3)
        torch.testing.assert_close(wide.contribution[:, :3], plain.contribution)
        assert not wide.contribution[:, 3:].any()
        assert torch.equal(wide.loss_count[:, :3], plain.loss_count)
        assert not plain.contribution[plain.loss_count == 0].any()
        assert plain.nelbo[7] == 0
        assert plain.nelbo.sum() > 0
        for cut in (slice(row, row + 1) for row in range(0, 400, 133)):  # nor does a row depend on its batch
            alone = run(form, look, x[cut], maskable[cut], rows[cut], keys[cut], 3)
            torch.testing.assert_close(alone.contribution, plain.contribution[cut])


# Uniform weights


@at_most(20)
@given(seed=st.integers(0, 2**62), draws=st.integers(1, 9), padding=st.integers(0, 3), scale=st.floats(-5, 5))
def test_with_uniform_weights_the_order_form_is_exact_k(seed, draws, padding, scale):
    """The same masks and the same number, whatever the common factor of the weights."""
    x, maskable, _, _ = tiled(weights(), 3)
    x, maskable = x.repeat(1, 3), maskable.repeat(1, 3)
    maskable[1::2, 9 - padding :] = False
    keys = sequence_keys(seed, "evaluation", torch.arange(len(x)))
    losses, masks = from_denoiser(HASHED), exact_k(maskable, keys, draws, time_at=lambda r: r)
    expected = average(lambda *at: {"nelbo": losses(*at)}, x, masks, 2)["nelbo"]
    log_w = torch.full(x.shape, scale)
    found = run("order", uniform_look, x, maskable, log_w, keys, draws)
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-9, atol=1e-12)
    assert torch.equal(found.loss_count, expected.loss_count)
    torch.testing.assert_close(found.loss_sum, expected.loss_sum, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.contribution, expected.contribution, rtol=1e-12, atol=1e-12)


# What is drawn


def test_a_sequence_of_one_token_is_masked_whole():
    drawn = FORMS["order"].draw(
        torch.zeros(1, 3), torch.tensor([[False, True, False]]), torch.tensor([0.3]), torch.arange(1)
    )
    assert drawn.masked.tolist() == [[False, True, False]]
    assert drawn.level.tolist() == [1.0]


@pytest.mark.parametrize("k", [1, 2])
def test_the_race_leaves_a_set_with_its_probability(k):
    groups = 20_000
    log_w = weights()[:1].expand(groups, 3)
    maskable = torch.ones(groups, 3, dtype=torch.bool)
    unit = torch.full((groups,), (k - 0.5) / 3, dtype=torch.float64)
    drawn = FORMS["order"].draw(log_w, maskable, unit, sequence_keys(2, "test", torch.arange(groups)))
    assert (drawn.masked.sum(1) == k).all()
    number = (drawn.masked * torch.tensor([1, 2, 4])).sum(1)
    sizes = subsets(3).sum(1) == k
    expected = groups * log_last(log_w[:1])[0].exp()[sizes]
    counts = torch.bincount(number, minlength=8)[sizes]
    assert stats.chisquare(counts.double().numpy(), expected.numpy()).pvalue > 1e-3


def test_the_timed_form_masks_the_expected_share_and_each_token_with_its_probability():
    groups = 20_000
    log_w = weights()[:1].expand(groups, 3)
    maskable = torch.ones(groups, 3, dtype=torch.bool)
    for rate in (0.05, 0.5, 0.9):
        unit = torch.full((groups,), 1 - rate, dtype=torch.float64)
        drawn = FORMS["timed"].draw(log_w, maskable, unit, sequence_keys(2, "test", torch.arange(groups)))
        p = drawn.level[:1, None] ** log_w[:1].exp()
        assert float(p.mean()) == pytest.approx(rate, abs=1e-9)
        share = drawn.masked.double().mean(0)
        assert ((share - p[0]).abs() / (p[0] * (1 - p[0]) / groups).sqrt()).max() < 4


def test_log_probabilities_by_hand():
    log_w = weights(size=0.5)[:4].requires_grad_()
    maskable = torch.tensor([[True] * 3, [True, False, True], [False] * 3, [True] * 3])
    unit = torch.tensor([0.1, 0.1, 0.1, 0.5]).double()
    keys = sequence_keys(4, "test", torch.arange(4))
    w = log_w.detach().exp()
    drawn = FORMS["order"].draw(log_w, maskable, unit, keys)
    for row in range(4):
        left = [i for i in range(3) if maskable[row, i]]
        expected = 0.0
        for i in sorted(left, key=lambda i, row=row: float(drawn.clock[row, i])):
            if not drawn.masked[row, i]:
                expected += math.log(w[row, i] / sum(w[row, j] for j in left))
                left.remove(i)
        assert left == drawn.masked[row].nonzero()[:, 0].tolist()
        assert float(FORMS["order"].log_probability(drawn, log_w).detach()[row]) == pytest.approx(expected, abs=1e-12)
    drawn = FORMS["timed"].draw(log_w, maskable, unit, keys)
    p = drawn.level[:, None] ** w
    expected = torch.where(drawn.masked, p, 1 - p).log()
    expected = torch.where(maskable, expected, 0.0).sum(1)
    torch.testing.assert_close(FORMS["timed"].log_probability(drawn, log_w).detach(), expected)


# Gradients for learned forward weights


def gradients(form, log_w, groups, draws, score=True, seed=0):
    """The estimated gradient for the log-weights of every sequence, `groups` independent times, [G, 8, 3]."""
    x, maskable, rows, keys = tiled(log_w, groups)
    rows = rows.clone().requires_grad_()
    form = FORMS[form]
    unit = uniform(fold(keys, seed), 1, torch.float64)[:, 0]
    bounds, log_q = [], []
    for j in range(draws):
        drawn = form.draw(rows, maskable, unit, fold(keys, 100 + j))
        found = look(torch.where(drawn.masked, 2, x), None, drawn.masked, x)
        ce, log_reverse = (torch.zeros(x.shape).double().masked_scatter(drawn.masked, a) for a in found)
        weight, bracket = form.terms(drawn, rows, log_reverse)
        bounds.append((weight * ce + bracket).sum(1))
        log_q.append(form.log_probability(drawn, rows))
    f, q = torch.stack(bounds), torch.stack(log_q)
    total = forward_surrogate(f, q) if score else f.mean(0)
    torch.testing.assert_close(total.detach(), f.detach().mean(0))  # the surrogate has the bound's own value
    (gradient,) = torch.autograd.grad(total.sum(), rows)
    return gradient.view(groups, 8, 3)


def exact_gradient(form, log_w):
    """By finite differences of the enumerated bound, and by its derivative."""
    model = look_everywhere(look, JOINT.states, 2)
    leaf = log_w.clone().requires_grad_()
    (derivative,) = torch.autograd.grad(enumerated(form, leaf, *model).sum(), leaf)
    step = 1e-5
    found = torch.zeros(8, 3, dtype=torch.float64)
    for i in range(3):
        move = torch.zeros(3, dtype=torch.float64)
        move[i] = step
        up, down = (enumerated(form, log_w + sign * move, *model) for sign in (1, -1))
        found[:, i] = (up - down) / (2 * step)
    torch.testing.assert_close(found, derivative, atol=1e-6, rtol=0)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", ["order", "timed"])
@pytest.mark.parametrize("draws", [2, 3])
def test_gradients_for_the_forward_weights_are_unbiased(form, draws):
    log_w, groups = weights(size=0.6), 6000
    expected = exact_gradient(form, log_w)
    found = gradients(form, log_w, groups, draws)
    error = found.std(0) / math.sqrt(groups)
    assert ((found.mean(0) - expected).abs() / error).max() < 4
    assert error.median() < 0.1 * expected.abs().max()
    # Without the score term it is far from it.
    plain = gradients(form, log_w, groups, draws, score=False)
    assert ((plain.mean(0) - expected).abs() / (plain.std(0) / math.sqrt(groups))).max() > 10


def test_the_baseline_takes_variance_away_and_nothing_else():
    """Without it E f ∇log q is the same, with more noise: b is of other draws of the same sequence."""
    f = torch.tensor([[3.0, 5.0], [1.0, 5.0], [2.0, 5.0]])
    log_q = torch.zeros(3, 2, requires_grad=True)
    forward_surrogate(f, log_q).sum().backward()
    assert torch.allclose(log_q.grad[:, 0], torch.tensor([3 - 1.5, 1 - 2.5, 2 - 2.0]) / 3)
    assert not log_q.grad[:, 1].any()
    with pytest.raises(ValueError, match="at least two draws"):
        forward_surrogate(f[:1], log_q[:1])


# Extremes


@pytest.mark.parametrize("form", ["order", "timed"])
@pytest.mark.parametrize("size", [1e-9, 50.0, 500.0])
def test_sharp_weights_give_finite_numbers_and_gradients(form, size):
    x, maskable, _, keys = tiled(weights(), 40)
    maskable[::7, 1] = False
    maskable[3] = False
    log_w = weights(size=size).repeat(40, 1).requires_grad_()
    # A model that follows: else its ŵ of 1 against a w of e^500 costs e^500, and is right to.
    log_reverse = log_w.detach().clone().requires_grad_()
    unit = (torch.arange(len(x)).double() + 0.5) / len(x)
    for extreme in (unit, torch.zeros_like(unit), torch.full_like(unit, 1 - 2.0**-53)):
        drawn = FORMS[form].draw(log_w, maskable, extreme, keys)
        weight, bracket = FORMS[form].terms(drawn, log_w, log_reverse)
        log_q = FORMS[form].log_probability(drawn, log_w)
        assert all(a.isfinite().all() for a in (weight, bracket, log_q, drawn.rate, drawn.level))
        assert not (drawn.masked & ~maskable).any()
        total = (weight + bracket).sum() + log_q.sum()
        for gradient in torch.autograd.grad(total, [log_w, log_reverse]):
            assert gradient.isfinite().all()


def test_log1mexp_at_both_ends():
    a = torch.tensor([-1e-300, -1e-20, -1e-3, -0.69, -0.7, -5.0, -40.0, -800.0], dtype=torch.float64).requires_grad_()
    found = log1mexp(a)
    expected = [math.log(-math.expm1(v)) if v > -1 else math.log1p(-math.exp(v)) for v in a.tolist()]
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    found.sum().backward()
    assert a.grad.isfinite().all()
