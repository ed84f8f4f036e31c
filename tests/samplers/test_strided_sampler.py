"""Class by class: exact, and with a cache, with a model that reads so; an order like others with one that does not."""

import pytest
import torch
from exactness import fit, masks, random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion.positions import pairs
from atat_zoo.generation import Writer
from atat_zoo.generation.guidance import ClassifierFreeGuidance, TokenBiasGuidance
from atat_zoo.samplers.order import StridedOrder
from atat_zoo.samplers.pace import FixedPace, StridedPace
from atat_zoo.samplers.piecewise import StridedSampler
from atat_zoo.samplers.published import AncestralSampler, LeftToRightSampler
from atat_zoo.samplers.teacher_forcing import TeacherForcing
from atat_zoo.testing.sampling import assemble, noisy, traced
from atat_zoo.testing.toys import Hashed, Joint
from atat_zoo.tokenizers import CharactersTokenizer

V, L, STRIDE = 7, 14, 4
GREEDY = Zoo.load().spec("sampler", {"use": "strided", "draw": {"use": "categorical", "temperature": 0}})


def model(stride=STRIDE, length=L, v=V, std=0.4):
    return random_model({"use": "strided", "stride": stride}, v, length, std, local_heads=2)


def anew(denoiser, z, stride):
    """The most probable tokens class by class, the whole text read anew for each class."""
    z, c = z.clone(), torch.arange(z.shape[1]) % stride
    for turn in range(stride):
        where = (z == denoiser.mask_id) & (c == turn)
        if where.any():
            with torch.no_grad():
                z[where] = denoiser(z, None, where).argmax(-1)
    return z


def filled(sampler, z):
    """Return the result, and each position that was filled, as (step, row, position), sorted."""
    made, trace = traced(sampler, Hashed(int(z.max())), z, torch.arange(len(z)))
    return made, sorted(
        (record["step"], *pair) for record in trace for pair in zip(record["rows"], record["positions"], strict=True)
    )


@settings(deadline=None, max_examples=min(30, settings.default.max_examples))
@given(data=st.data(), length=st.integers(1, 13))
def test_logits_with_the_cache_are_those_without(data, length):
    stride = data.draw(st.integers(1, length + 2))
    built, rows = model(stride, length), 3
    z = noisy(rows, length, V, data.draw(st.integers(0, 99))).clamp(max=V - 1)
    rows_taken = torch.tensor(data.draw(st.sampled_from([[0, 1, 2], [0, 2], [1]])))
    c = torch.arange(length) % stride
    with torch.no_grad():
        decoder = built.denoiser().begin(rows, length)
        for turn in range(min(stride, length)):
            if turn:
                decoder.read(z[:, c == turn - 1])
            masked = torch.where(c >= turn, V, z)[rows_taken]
            own = torch.ones_like(masked[:, c == turn], dtype=torch.bool)
            found = decoder.of(rows_taken)(masked[:, c == turn], None, pairs(own))
            whole = built.denoiser()(masked, None, (c == turn).expand(masked.shape))
            torch.testing.assert_close(found, whole, rtol=1e-11, atol=1e-11)


def test_the_text_is_that_of_a_loop_without_a_cache():
    built = model()
    z = torch.full((5, L), V)
    z[1, ::STRIDE] = 2  # a complete class
    z[2, 0] = z[2, STRIDE] = 3  # a part of one
    z[3, ::STRIDE] = z[3, 1::STRIDE] = 1
    z[4] = 5
    made, trace = traced(GREEDY, built.denoiser(), z, torch.arange(5))
    assert torch.equal(made.tokens, anew(built.denoiser(), z, STRIDE))
    assert [{i % STRIDE for i in record["positions"]} for record in trace] == [{0}, {1}, {2}, {3}]
    assert made.nfe.tolist() == [4, 3, 4, 2, 0]
    assert made.max_nfe == 4


@pytest.mark.parametrize(("stride", "length", "passes"), [(4, 14, 4), (16, 5, 5)])
def test_every_position_is_read_once_and_a_class_is_one_evaluation(stride, length, passes):
    built = model(stride, length)
    sizes = []
    built.backbone.register_forward_hook(lambda _, args, out: sizes.append(args[0].shape[1]))
    made = StridedSampler().sample(built.denoiser(), torch.full((2, length), V), torch.arange(2))
    assert made.nfe.tolist() == [passes] * 2
    assert made.max_nfe == len(sizes) == passes
    assert sum(sizes) == length
    assert max(sizes) == -(-length // stride)
    sizes.clear()
    StridedSampler().sample(built.denoiser(), torch.zeros(2, length, dtype=torch.int64), torch.arange(2))
    assert not sizes


def test_texts_are_drawn_from_the_likelihood():
    """With the bound that is reported as perplexity: what is measured is what is written."""
    built = model(2, 4, 2, std=0.7)
    x = torch.cartesian_prod(*[torch.arange(2)] * 4)
    bound = Zoo.load().spec("bound", "exact_k")
    with torch.no_grad():
        found = built.bound(x, torch.ones_like(x, dtype=torch.bool), torch.arange(16), 1, bound)["nelbo"]
    forced = TeacherForcing(x)
    StridedSampler().score_text(built.denoiser(), torch.full_like(x, 2), torch.arange(16), forced)
    torch.testing.assert_close(forced.nats.sum(1), found.nelbo, check_dtype=False)
    joint = Joint((-found.nelbo).exp(), 4, 2)
    made = StridedSampler().sample(built.denoiser(), *masks(joint, 20_000))
    assert fit(made, joint) > 0.001
    assert fit(made, Joint(torch.ones(16), 4, 2)) < 1e-6


def test_a_given_token_that_would_not_be_seen_is_refused():
    built, z = model(), torch.full((2, L), V)
    z[1, 1] = 3  # of the second class, and the first is open
    with pytest.raises(UserError, match=r"^this model writes position i in turn i mod 4, and would not see .* gaps"):
        StridedSampler().sample(built.denoiser(), z, torch.arange(2))
    assert (StridedSampler().sample(Hashed(V), z, torch.arange(2)).tokens[1, 1] == 3).all()


def test_samplers_with_another_order_are_refused():
    built, z = model(), torch.full((2, L), V)
    for sampler in (AncestralSampler(), LeftToRightSampler(), Zoo.load().spec("sampler", "semi_autoregressive")):
        with pytest.raises(UserError, match=r'class by class.*"strided"'):
            sampler.sample(built.denoiser(), z, torch.arange(2))
    with pytest.raises(UserError, match=r"sampler\.stride = 2 is not the 4 classes of the model"):
        StridedSampler(stride=2).sample(built.denoiser(), z, torch.arange(2))
    # One class alone may be filled in any order.
    z[:] = 1
    z[:, 2::STRIDE] = V
    assert (AncestralSampler(steps=3).sample(built.denoiser(), z, torch.arange(2)).tokens < V).all()


LETTERS = CharactersTokenizer().train(lambda: iter(()))


def test_guidance_sees_the_text_so_far():
    writer = Writer(denoiser=model(3, 12, 27).denoiser(), tokenizer=LETTERS, length=12)
    guided = TokenBiasGuidance(words=("abc", "de"), strength=60.0, ban=("e d",)).guide(writer)
    z = torch.full((3, 12), 27)
    z[1, ::3] = 5
    made = guided.fill(GREEDY, z)
    assert torch.equal(made.tokens, anew(guided.denoiser, z, 3))
    assert not torch.equal(made.tokens, writer.fill(GREEDY, z).tokens)
    with pytest.raises(UserError, match="guidance: classifier_free conditions on a prompt, and this model"):
        ClassifierFreeGuidance(condition="ab").guide(writer)


@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_every_step_fills_what_is_open_of_one_class(stride, length, seed):
    z = noisy(5, length, 4, seed)
    of_parts = assemble(order=StridedOrder(stride=stride), pace=StridedPace(stride=stride))
    for sampler in (StridedSampler(stride=stride), of_parts):
        made, steps = filled(sampler, z)
        number = (z == 4).cumsum(1) - 1  # what is given does not count
        assert all(int(number[row, position]) % stride == step for step, row, position in steps)
        assert (made.tokens < 4).all()
        # A row with fewer open positions than classes skips the others.
        assert made.nfe.tolist() == (z == 4).sum(1).clamp(max=stride).tolist()
        assert made.max_nfe <= stride


@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_with_a_random_offset_every_text_has_classes_of_its_own(stride, length, seed):
    z = noisy(5, length, 4, seed)
    classes = min(stride, length)
    made, steps = filled(StridedSampler(stride=stride, offset="random"), z)
    assert sorted(pair for _, *pair in steps) == (z == 4).nonzero().tolist()
    number = (z == 4).cumsum(1) - 1
    for row in range(5):
        mine = [(step, int(number[row, position])) for step, r, position in steps if r == row]
        assert len({(step - position) % classes for step, position in mine}) <= 1
        assert int(made.nfe[row]) == len({step for step, _ in mine})


def test_every_offset_is_as_frequent():
    z = torch.full((4000, 8), 4)
    _, (first, *_) = traced(StridedSampler(stride=4, offset="random"), Hashed(4), z, torch.arange(4000))
    counts = torch.bincount(torch.tensor(first["positions"]) % 4) / 2
    # Binomial with p = 1/4: 1000 ± 27.
    assert (counts - 1000).abs().max() < 5 * 27.4


def test_the_order_draws_the_offset_that_the_sampler_draws():
    z, order = torch.full((6, 12), 5), StridedOrder(stride=4, offset="random")
    _, drawn = filled(assemble(order=order, pace=FixedPace(steps=4)), z)
    assert drawn == filled(StridedSampler(stride=4, offset="random"), z)[1] != filled(StridedSampler(stride=4), z)[1]
    assert not order.deterministic
