"""The bounds of the baselines against exact numbers, and that a causal model is causal."""

import math

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_objectives import BACKBONE, BASELINES, L, V, batch, build

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion.likelihood_bounds import (
    all_masks,
    average,
    block_masks,
    exact_k,
    from_denoiser,
    unmask_probability,
)
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.modeling.objectives.masked_diffusion_module import step_kl
from atat_zoo.registry import Context
from atat_zoo.testing.toys import ExactBackbone, Joint, toy
from tests.enumerated import enumerate_discrete
from tests.examples import at_most

EXACT_K = Zoo.load().spec("bound", "exact_k")


@attrs.frozen
class Enumerated:
    """A bound by all masks, in place of draws."""

    name = "enumerated"
    quantity = "nelbo"
    follows_noise = False

    def masks(self, maskable, keys, draws, noise):
        return all_masks(maskable)


def plugged(objective, joint=None, shift=None, noise=None):
    """An objective whose network is exact, and every sequence of the joint."""
    joint = joint or toy()
    v = joint.vocabulary_size
    context = Context(vocabulary_size=v, length=joint.length, width=v)
    spec = Zoo.load().spec("objective", objective)
    parts = {"backbone": ExactBackbone(joint, shift, shifted=spec.shifted), "noise": noise or LinearNoise()}
    module = spec.build(context, parts, 1).double().eval()
    x = joint.states
    return module, x, torch.ones_like(x, dtype=torch.bool), torch.arange(len(x))


def expected(joint, nelbo):
    return float((joint.p * nelbo).sum())


def joint_of(seed, length=3, v=2):
    weights = torch.rand(v**length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3 + 1e-3
    return Joint(weights, length, v)


seeds = st.integers(0, 2**31)


# Autoregressive


@at_most(15)
@given(seed=seeds)
def test_the_chain_rule_gives_the_entropy(seed):
    joint = joint_of(seed, 3, 3)
    module, x, keep, keys = plugged("autoregressive", joint)
    found = module.bound(x, keep, keys, 1, EXACT_K)["nelbo"]
    torch.testing.assert_close(found.nelbo, -joint.p.log())
    assert expected(joint, found.nelbo) == pytest.approx(joint.entropy, abs=1e-10)
    assert torch.equal(found.loss_count, keep.long())
    assert torch.equal(found.nelbo, module.bound(x, keep, keys + 5, 7, EXACT_K)["nelbo"].nelbo)


# SEDD


@at_most(15)
@given(seed=seeds, shift=st.just(0.0) | st.floats(-2, 2))
def test_sedd_reaches_the_entropy_and_pays_for_ratios_that_are_not_normalised(seed, shift):
    """f = log p + c gives S = e^c, and the own bound is the entropy + (S − 1 − log S) · E[Σ n/k · k] = n · penalty."""
    joint = joint_of(seed)
    module, x, keep, keys = plugged("sedd", joint, shift=math.log(2) + shift)
    found = module.bound(x, keep, keys, 1, Enumerated())
    assert list(found) == ["nelbo", "sedd"]
    assert expected(joint, found["nelbo"].nelbo) == pytest.approx(joint.entropy, abs=1e-9)
    penalty = math.exp(shift) - 1 - shift
    assert expected(joint, found["sedd"].nelbo) == pytest.approx(joint.entropy + 3 * penalty, rel=1e-6, abs=1e-9)


# D3PM


def enumerated_steps(module, x, T, noise):
    """Σ_i E ΣKL_i by all masks; one network evaluation a mask, since it reads no time."""
    total, i = torch.zeros(len(x), dtype=torch.float64), torch.arange(1, T + 1)
    beta, visible = unmask_probability(i, T, noise.alpha), noise.alpha(i.double() / T)
    length = x.shape[1]
    for bits in range(1, 2**length):
        masked = torch.tensor([bool(bits >> p & 1) for p in range(length)]).expand(x.shape)
        positions = module.head_inputs_of(torch.where(masked, module.context.mask_id, x), None, masked, x).at(masked)
        of_x, of_mask = module.chunked_losses(positions, x[masked], module.outcomes).values()
        k = int(masked[0].sum())
        for b, a in zip(beta, visible, strict=True):
            kl = step_kl(of_x, of_mask, b.expand(len(of_x))).view(len(x), k).sum(1)
            total += kl * (1 - a) ** k * a ** (length - k)
    return total


@at_most(15)
@given(seed=seeds, T=st.integers(1, 12), logit=st.floats(-30, 3), tilt=st.floats(-2, 2))
def test_d3pm_is_never_below_the_entropy(seed, T, logit, tilt):
    joint = joint_of(seed)
    module, x, _, _ = plugged({"use": "d3pm", "steps": T}, joint)
    with torch.no_grad():
        module.mask_head.weight.fill_(tilt)
        module.mask_head.bias.fill_(logit)
        module.mask_head.weight[0, 0] = -tilt
        bound = expected(joint, enumerated_steps(module, x, T, module.noise))
        assert bound >= joint.entropy - 1e-9
        module.mask_head.weight.zero_()
        module.mask_head.bias.fill_(-1e9)
        without = enumerated_steps(module, x, T, module.noise)
    # μ = 0: the discrete bound of the exact denoiser at the same T.
    same = enumerate_discrete(from_denoiser(joint.denoiser), x, mask_id=2, alpha=module.noise.alpha, steps=T)
    torch.testing.assert_close(without, same)
    assert bound >= expected(joint, without) - 1e-9


@pytest.mark.parametrize("logit", [-1e9, 0.0])
def test_the_draws_of_d3pm_agree_with_enumeration(logit):
    T, rows = 8, 4000
    module, x, _, _ = plugged({"use": "d3pm", "steps": T})
    with torch.no_grad():
        module.mask_head.bias.fill_(logit)
        exact = float(enumerated_steps(module, x[3:4], T, module.noise))
        many = x[3:4].expand(rows, 3)
        keep, keys = torch.ones_like(many, dtype=torch.bool), torch.arange(rows)
        found = module.bound(many, keep, keys, 2, EXACT_K)["d3pm"].nelbo
        assert abs(float(found.mean()) - exact) < 3 * float(found.std()) / math.sqrt(rows)
        if logit < -1e6:
            # The same draws as the part `discrete_t`, whose number it then is.
            method = Zoo.load().spec("bound", {"use": "discrete_t", "steps": T})
            named = module.bound(many[:50], keep[:50], keys[:50], 3, method)
            torch.testing.assert_close(named["d3pm"].contribution, named["discrete T=8"].contribution)


# Block


@at_most(15)
@given(seed=seeds)
def test_blocks_of_one_token_are_the_chain_rule(seed):
    joint = joint_of(seed)
    module, x, keep, keys = plugged({"use": "block", "block_size": 1}, joint)
    torch.testing.assert_close(module.bound(x, keep, keys, 1, EXACT_K)["nelbo"].nelbo, -joint.p.log())


@at_most(15)
@given(seed=seeds, draws=st.integers(1, 3))
def test_a_block_of_the_whole_length_is_exact_k(seed, draws):
    joint = joint_of(seed)
    module, x, keep, keys = plugged({"use": "block", "block_size": 3}, joint)
    keep = keep.clone()
    keep[1, 2] = False
    found = module.bound(x, keep, keys, draws, EXACT_K)["nelbo"]
    losses, masks = from_denoiser(joint.denoiser), exact_k(keep, keys, draws, time_at=LinearNoise().time_at)
    same = average(lambda *at: {"nelbo": losses(*at)}, x, masks, 2)["nelbo"]
    torch.testing.assert_close(found.contribution, same.contribution)
    assert torch.equal(found.loss_count, same.loss_count)


@at_most(15)
@given(seed=seeds, size=st.integers(1, 4), blocks=st.integers(1, 3), draws=st.integers(1, 4))
def test_every_block_has_its_own_number_of_masks(seed, size, blocks, draws):
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(5, size * blocks, generator=generator) < 0.8
    keys = torch.randint(0, 2**40, (5,), generator=generator)
    n = keep.view(5, blocks, size).sum(2)
    seen = []
    for mask in block_masks(keep, keys, draws, size):
        masked, weight = mask.masked, mask.weight
        k = masked.view(5, blocks, size).sum(2)
        assert not (masked & ~keep).any()
        assert ((k >= 1) | (n == 0)).all()
        torch.testing.assert_close(weight.view(5, blocks, size)[..., 0] * k, n.double())
        seen.append(k)
    if draws == size:  # stratified: where a block is full, every k once
        full = torch.stack(seen).sort(0).values[:, n == size]
        assert (full == torch.arange(1, size + 1)[:, None]).all()


def test_training_on_one_block_is_training_mdlm():
    plain = dict.fromkeys(("estimator", "masking"), "uniform") | {"mask_drawing": "bernoulli", "curriculum": "none"}
    mdlm = build("mdlm", target="difficulty", **plain)
    block = build({"use": "block", "block_size": L})
    block.backbone.load_state_dict(mdlm.backbone.state_dict())
    for first in range(3):
        one, other = mdlm.loss(batch(first)), block.loss(batch(first))
        assert torch.equal(one["masked"], other["masked"])
        torch.testing.assert_close(one["loss"], other["loss"])


# Causality, of real networks

# In a single layer what the clean tokens have read would not show.
DEEP = BACKBONE | {"layers": 2}


def ce(module, x):
    """−log p of every token, [B, L], as the bound has it; with masks that do not depend on x."""
    with torch.no_grad():
        keep = torch.ones_like(x, dtype=torch.bool)
        return module.bound(x, keep, torch.arange(len(x)), 2, EXACT_K)["nelbo"].contribution


@pytest.mark.parametrize(("name", "size", "position"), [("autoregressive", 1, 2), ("block", 2, 1), ("block", 3, 3)])
def test_a_later_token_changes_no_earlier_prediction(name, size, position):
    objective = {"use": name} if name == "autoregressive" else {"use": name, "block_size": size}
    module = build(objective, backbone=DEEP).double().eval()
    x = batch(2).tokens
    changed = x.clone()
    changed[:, position] = (x[:, position] + 1) % V
    one, other = ce(module, x), ce(module, changed)
    first, after = position // size * size, (position // size + 1) * size
    torch.testing.assert_close(one[:, :first], other[:, :first], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(one[:, position], other[:, position])
    if after < L:
        # Everything later reads it.
        assert ((one[:, after:] != other[:, after:]) | (one[:, after:] == 0)).all()


@pytest.mark.parametrize("name", ["autoregressive", "block"])
def test_a_gap_before_what_is_asked_is_refused(name):
    module = build(BASELINES[name]).eval()
    z = batch().tokens.clone()
    z[0, 1] = z[0, 4] = V
    where = torch.zeros_like(z, dtype=torch.bool)
    where[0, 4] = True
    with torch.no_grad():
        with pytest.raises(UserError, match=f"{name}.*left_to_right"):
            module.denoiser()(z, None, where)
        z[0, 1] = 0
        z[1, 0] = V  # another row's gap is no matter
        z[0, 5] = V
        assert module.denoiser()(z, None, where).shape == (1, V)
        where[0, 5] = True
        if name == "block":  # masks of one block are predicted side by side
            assert module.denoiser()(z, None, where).shape == (2, V)
