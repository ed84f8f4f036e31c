"""The objective `strided`: what each position sees, and that its likelihood is exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_objectives import BACKBONE, V, batch, build
from test_baseline_bounds import EXACT_K, joint_of, plugged

from atat_zoo import UserError
from atat_zoo.experiment import from_table
from atat_zoo.registry import Context

DEEP = BACKBONE | {"layers": 2}


def strided(stride, length, v=V, **backbone):
    """A network of two layers with random weights, in float64."""
    context = Context(vocabulary_size=v, length=length, width=16, seed=5)
    objective = {"use": "strided", "stride": stride}
    return build(objective, context=context, backbone=DEEP | backbone).double().eval()


def text(length, v=V, rows=3, seed=0):
    return torch.randint(0, v, (rows, length), generator=torch.Generator().manual_seed(seed))


def nats(module, x):
    """−log p of every token, [B, L], as the bound has it."""
    with torch.no_grad():
        keep = torch.ones_like(x, dtype=torch.bool)
        return module.bound(x, keep, torch.arange(len(x)), 1, EXACT_K)["nelbo"].contribution


@settings(deadline=None, max_examples=min(60, settings.default.max_examples))
@given(data=st.data(), length=st.integers(1, 11), local=st.integers(0, 2), seed=st.integers(0, 99))
def test_a_token_is_seen_by_later_classes_and_by_no_other_place(data, length, local, seed):
    stride, position = data.draw(st.integers(1, length)), data.draw(st.integers(0, length - 1))
    module = strided(stride, length, local_heads=local)
    x = text(length, seed=seed)
    changed = x.clone()
    changed[:, position] = (x[:, position] + data.draw(st.integers(1, V - 1))) % V
    one, other = nats(module, x), nats(module, changed)
    c = torch.arange(length) % stride
    # The last token of a text is read by no position.
    blind = c <= (c[position] if position < length - 1 else stride)
    blind[position] = False
    torch.testing.assert_close(one[:, blind], other[:, blind], rtol=1e-12, atol=1e-12)
    # All of a later class see it, and the token itself is another.
    assert (one[:, ~blind] != other[:, ~blind]).all()


@pytest.mark.parametrize("stride", [6, 9])
def test_as_many_classes_as_tokens_are_autoregressive(stride):
    one = build({"use": "strided", "stride": stride}, backbone=DEEP)
    other = build("autoregressive", backbone=DEEP)
    other.load_state_dict(one.state_dict())
    found, expected = one.loss(batch(1)), other.loss(batch(1))
    torch.testing.assert_close(found["token_loss"], expected["token_loss"], rtol=1e-5, atol=1e-5)
    found["loss"].backward()
    expected["loss"].backward()
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(("v", "length"), [(2, 4), (3, 3), (2, 7)])
def test_the_likelihoods_of_all_texts_add_up_to_one(v, length):
    for stride in range(1, length + 1):
        module = strided(stride, length, v, local_heads=1)
        x = torch.cartesian_prod(*[torch.arange(v)] * length)
        p = (-nats(module, x).sum(1)).exp()
        assert float(p.sum()) == pytest.approx(1, abs=1e-12), stride
        assert float(p.max()) > 1.5 / len(x), "an even distribution would add up by itself"


@given(seed=st.integers(0, 2**31), stride=st.integers(1, 4))
def test_with_an_exact_network_each_token_costs_what_earlier_classes_leave_open(seed, stride):
    joint = joint_of(seed, 4)
    module, x, keep, keys = plugged({"use": "strided", "stride": stride}, joint)
    c = torch.arange(4) % stride
    expected = torch.zeros(x.shape, dtype=torch.float64)
    for i in range(4):
        z = torch.where(c < c[i], x, joint.mask_id)
        z[:, -1] = joint.mask_id
        expected[:, i] = -joint.marginals(z)[torch.arange(len(x)), i, x[:, i]].log()
    found = module.bound(x, keep, keys, 1, EXACT_K)["nelbo"]
    torch.testing.assert_close(found.contribution, expected)
    assert float((joint.p * found.nelbo).sum()) >= joint.entropy - 1e-12
    if stride == 4:
        torch.testing.assert_close(found.nelbo, -joint.p.log())


@settings(deadline=None, max_examples=min(30, settings.default.max_examples))
@given(data=st.data(), length=st.integers(1, 9))
def test_the_denoiser_is_what_the_likelihood_is_of(data, length):
    stride = data.draw(st.integers(1, length + 2))
    module, x = strided(stride, length), text(length)
    expected, c = nats(module, x), torch.arange(length) % stride
    for turn in range(min(stride, length)):
        # Of the first class with masks some tokens are there; of later ones whatever there is is not seen.
        asked = (c == turn) & (torch.arange(length) >= data.draw(st.integers(0, turn)))
        z = torch.where(asked | ((c > turn) & (text(length, seed=1) < V // 2)), V, x)
        where = asked.expand(z.shape)
        with torch.no_grad():
            log_probs = module.denoiser()(z, None, where)
        torch.testing.assert_close(-log_probs.gather(1, x[where][:, None])[:, 0], expected[where])


def test_a_gap_in_an_earlier_class_is_refused():
    module = strided(3, 6)
    z, where = text(6), torch.zeros(3, 6, dtype=torch.bool)
    z[0, 1] = z[0, 4] = z[1, 0] = V  # a gap of the same class, and one in another row
    where[0, 4] = True
    with torch.no_grad():
        assert module.denoiser()(z, None, where).shape == (1, V)
        z[0, 3] = V
        with pytest.raises(UserError, match=r"'strided' predicts a token from the tokens of earlier.*strided"):
            module.denoiser()(z, None, where)


def test_every_token_has_weight_one():
    module, given_ = build({"use": "strided", "stride": 4}), batch(1)
    found = module.loss(given_)
    assert torch.equal(found["masked"], given_.maskable)
    assert float(found["loss"].detach()) == pytest.approx(float(found["token_loss"].sum() / given_.maskable.sum()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": {"stride": 33}}, "objective.stride: 33 is more than data.length = 32"),
        ({"sampler": "ancestral"}, "writes the positions i mod 8 in turn, and 'ancestral'"),
        ({"sampler": "left_to_right"}, 'use = "strided"'),
        ({"sampler": "semi_autoregressive"}, 'use = "strided"'),
        ({"sampler": {"use": "strided", "stride": 4}}, "sampler.stride: 4 is not objective.stride = 8"),
        ({"data": {"special": "sequence"}}, "data.special: objective 'strided'"),
        ({"sampler": {"use": "strided", "offset": "random"}}, 'sampler.offset: "random" is not for this model'),
        ({"backbone": {"time_conditioning": True}}, "backbone.time_conditioning: objective 'strided'"),
        ({"evaluation": {"bound": {"use": "continuous_t"}}}, "evaluation.bound: objective 'strided'"),
        ({"noise": "linear"}, "noise"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(changes, said):
    table = {"name": "x", "objective": {"use": "strided", "stride": 8}, "sampler": "strided", "data": {"length": 32}}
    assert from_table(table).parts["objective"].exact
    for key, value in changes.items():
        old = table.get(key, {})
        table[key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
    with pytest.raises(UserError) as caught:
        from_table(table)
    (line,) = str(caught.value).splitlines()
    assert said in line


def test_a_stride_may_be_the_length_and_need_not_divide_it():
    for stride in (1, 5, 32):
        own = {"use": "strided", "stride": stride}  # of the objective, and of a sampler that says it again
        for sampler in ("strided", own):
            from_table({"name": "x", "objective": own, "data": {"length": 32}, "sampler": sampler})
