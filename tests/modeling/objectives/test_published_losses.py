"""The losses of `sedd` and `d3pm` are those of their papers, on the same logits and masks, to rounding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from published_losses import d3pm_kl, score_entropy
from small_objectives import V, batch, build

from atat_zoo import Zoo
from atat_zoo.diffusion.likelihood_bounds import unmask_probability
from atat_zoo.modeling.objectives.masked_diffusion_module import score_entropy as ours
from atat_zoo.modeling.objectives.masked_diffusion_module import step_kl
from tests.examples import at_most

NOISES = ["linear", "cosine", "polynomial", "geometric", "log_linear"]
seeds = st.integers(0, 2**31)


def logits(seed, v, scale):
    return torch.randn(v, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def slope(noise, t):
    t = t.clone().requires_grad_()
    (found,) = torch.autograd.grad(noise.alpha(t), t)
    return found


@pytest.mark.parametrize("name", NOISES)
@at_most(12)
@given(seed=seeds, v=st.integers(1, 6), scale=st.sampled_from([0.1, 1.0, 4.0]), t=st.floats(0.01, 0.99))
def test_score_entropy(name, seed, v, scale, t):
    noise, t, f = Zoo.load().spec("noise", name), number(t), logits(seed, v, scale)
    x = seed % v
    expected = score_entropy(f, x, noise.alpha(t), slope(noise, t))
    ce, excess = ours(f[None], torch.tensor([x]))
    assert float(noise.weight(t) * (ce + excess)) == pytest.approx(float(expected), rel=1e-8, abs=1e-9)
    assert excess >= 0
    # What it is made of: the cross-entropy, and nothing more where S = 1.
    assert float(ours(f[None].log_softmax(-1), torch.tensor([x]))[1]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", NOISES)
@at_most(12)
@given(
    seed=seeds,
    v=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 4.0]),
    step=st.integers(1, 30).flatmap(lambda T: st.tuples(st.just(T), st.integers(1, T))),
)
def test_the_kl_of_a_step(name, seed, v, scale, step):
    noise, (T, i) = Zoo.load().spec("noise", name), step
    alphas = noise.alpha(torch.arange(T + 1, dtype=torch.float64) / T)
    beta = unmask_probability(torch.tensor([i]), T, noise.alpha)
    log_p, x = logits(seed, v + 1, scale).log_softmax(-1), seed % v
    expected = d3pm_kl(log_p.exp(), x, i, alphas, joint=False)
    found = step_kl(log_p[x][None], log_p[-1][None], beta)
    assert float(found) == pytest.approx(float(expected), rel=1e-6, abs=1e-9)
    assert float(found) >= -1e-12
    # Equation 4 as it is printed is the same with the mask's logit moved.
    moved = log_p.clone()
    moved[-1] += (1 - alphas[i]).log()
    assert float(d3pm_kl(moved.softmax(-1), x, i, alphas, joint=True)) == pytest.approx(
        float(expected), rel=1e-6, abs=1e-9
    )


@given(seed=seeds, beta=st.floats(0, 1), mu=st.floats(0, 1, exclude_max=True))
def test_the_kl_is_finite_and_least_without_the_mask(seed, beta, mu):
    """On the rest of the mass, −log p̃ = CE − log(1 − μ); what μ adds is at least 0."""
    ce = float(logits(seed, 1, 1.0).abs())
    log_mu = number(mu).log()[None].requires_grad_()
    log_p = torch.log1p(-log_mu.exp()) - ce
    kl = step_kl(log_p, log_mu, number([beta]))
    assert float(kl.detach()) >= beta * ce - 1e-12
    assert step_kl(log_p.float(), log_mu.float(), number([beta])).isfinite().all()
    if mu > 0:
        assert torch.autograd.grad(kl, log_mu)[0].isfinite().all()


# The whole loss of a step, on the masks that the module drew


def masked_places(found):
    return [(int(a), int(b)) for a, b in found["masked"].nonzero()]


@pytest.mark.parametrize(("weight", "noise"), [("nelbo", "cosine"), ("simple", "linear")])
def test_the_loss_of_sedd(weight, noise):
    module = build({"use": "sedd", "weight": weight}, noise=noise).double()
    given = batch(1)
    found = module.loss(given)
    t = module.times(given.index).double()
    with torch.no_grad():
        z = torch.where(found["masked"], V, given.tokens)
        f = module.backbone.head(module.backbone(z)) - module.offset
    total = 0.0
    for row, position in masked_places(found):
        one = score_entropy(
            f[row, position], int(given.tokens[row, position]), module.noise.alpha(t[row]), slope(module.noise, t[row])
        )
        total += one if weight == "nelbo" else one / module.noise.weight(t[row])
    expected = float(total / given.maskable.sum())
    assert float(found["loss"].detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("weight", "noise", "T"), [("nelbo", "linear", 7), ("simple", "cosine", 7), ("nelbo", "cosine", 1)]
)
def test_the_loss_of_d3pm(weight, noise, T):
    module = build({"use": "d3pm", "weight": weight, "steps": T, "auxiliary": 0.3}, noise=noise).double()
    given = batch(1)
    found = module.loss(given)
    steps = (module.times(given.index) * T).ceil().long()
    alphas = module.noise.alpha(torch.arange(T + 1, dtype=torch.float64) / T)
    with torch.no_grad():
        hidden = module.backbone(torch.where(found["masked"], V, given.tokens))
        p = torch.cat([module.backbone.head(hidden), module.mask_head(hidden)], -1).softmax(-1)
    total = 0.0
    for row, position in masked_places(found):
        i, x = int(steps[row]), int(given.tokens[row, position])
        kl = d3pm_kl(p[row, position], x, i, alphas, joint=False)
        ce = -p[row, position, x].log()
        beta = (alphas[i - 1] - alphas[i]) / (1 - alphas[i])
        total += T * (kl + 0.3 * ce) if weight == "nelbo" else kl / beta + 0.3 * ce
    expected = float(total / given.maskable.sum())
    assert float(found["loss"].detach()) == pytest.approx(expected, rel=1e-6)
