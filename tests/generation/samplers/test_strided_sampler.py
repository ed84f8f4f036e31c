"""The order and the sampler `strided`, and a model that has learned it."""

import pytest
import torch
from exactness import fit, masks, random_model
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo
from atat_zoo.data.tokenizers.components import CharactersTokenizer
from atat_zoo.generation.guidance import TokenBiasGuidance
from atat_zoo.generation.samplers.order import StridedOrder
from atat_zoo.generation.samplers.published_samplers import StridedSampler
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.generation.samplers.tokens_per_step import PositionSetTokensPerStep
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.testing.sampler_checks import assemble, noisy, traced
from atat_zoo.testing.toys import Hashed, Joint
from tests.examples import at_most

V, L, STRIDE = 7, 14, 4


def model(stride=STRIDE, length=L, v=V, std=0.4):
    return random_model({"use": "strided_causal", "stride": stride}, v, length, std, local_heads=2)


def filled(sampler, z):
    """Return the result, and each position that was filled, as (step, row, position), sorted."""
    made, trace = traced(sampler, Hashed(int(z.max())), z, torch.arange(len(z)))
    return made, sorted(
        (record["step"], *pair) for record in trace for pair in zip(record["rows"], record["positions"], strict=True)
    )


def test_every_token_is_read_once():
    built, sizes = model(), []
    built.backbone.register_forward_hook(lambda _, args, out: sizes.append(args[0].shape[1]))
    made = StridedSampler(stride=STRIDE).sample(built.denoiser(), torch.full((2, L), V), torch.arange(2))
    assert made.nfe.tolist() == [STRIDE] * 2
    assert sizes == [4, 4, 4, 3]  # the first turn reads masks, and each other the tokens before its own
    sizes.clear()
    StridedSampler().sample(built.denoiser(), torch.zeros(2, L, dtype=torch.int64), torch.arange(2))
    assert not sizes


@pytest.mark.slow
def test_texts_are_drawn_from_the_likelihood():
    """With the bound that is reported as perplexity: what is measured is what is written."""
    built, sampler = model(2, 4, 2, std=0.7), StridedSampler(stride=2)
    x = torch.cartesian_prod(*[torch.arange(2)] * 4)
    bound = Zoo.load().spec("bound", "exact_k")
    with torch.no_grad():
        found = built.bound(x, torch.ones_like(x, dtype=torch.bool), torch.arange(16), 1, bound)["nelbo"]
    forced = TeacherForcing(x)
    sampler.score_text(built.denoiser(), torch.full_like(x, 2), torch.arange(16), forced)
    torch.testing.assert_close(forced.nats.sum(1), found.nelbo, check_dtype=False)
    joint = Joint((-found.nelbo).exp(), 4, 2)
    made = sampler.sample(built.denoiser(), *masks(joint, 20_000))
    assert fit(made, joint) > 0.001
    assert fit(made, Joint(torch.ones(16), 4, 2)) < 1e-6


def test_guidance_sees_the_text_so_far():
    greedy = Zoo.load().spec(
        "sampler", {"use": "strided", "stride": 3, "token_sampling": {"use": "categorical", "temperature": 0}}
    )
    letters = CharactersTokenizer().train(lambda: iter(()))
    text_generator = TextGenerator(denoiser=model(3, 12, 27).denoiser(), tokenizer=letters, length=12)
    guided = TokenBiasGuidance(words=("abc", "de"), strength=60.0, ban=("e d",)).guide(text_generator)
    z = torch.full((3, 12), 27)
    made, expected, denoiser = guided.fill(greedy, z), z.clone(), guided.denoiser.begin_generation(z)
    for turn in range(3):
        where = (torch.arange(12) % 3 == turn).expand(z.shape)
        with torch.no_grad():
            expected[where] = denoiser(expected, None, where).argmax(-1)
    assert torch.equal(made.tokens, expected)
    assert not torch.equal(made.tokens, text_generator.fill(greedy, z).tokens)


@at_most(15)
@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_every_step_fills_what_is_open_of_one_turn(stride, length, seed):
    z = noisy(5, length, 4, seed)
    of_parts = assemble(order=StridedOrder(stride=stride), tokens_per_step=PositionSetTokensPerStep(stride=stride))
    for sampler in (StridedSampler(stride=stride), of_parts):
        made, steps = filled(sampler, z)
        number = (z == 4).cumsum(1) - 1  # what is given does not count
        assert all(int(number[row, position]) % stride == step for step, row, position in steps)
        assert (made.tokens < 4).all()
        # A row with fewer open positions than turns skips the others.
        assert made.nfe.tolist() == (z == 4).sum(1).clamp(max=stride).tolist()
        assert made.max_nfe <= stride


@at_most(15)
@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_with_a_random_offset_every_text_has_turns_of_its_own(stride, length, seed):
    z = noisy(5, length, 4, seed)
    made, steps = filled(StridedSampler(stride=stride, offset="random"), z)
    assert sorted(pair for _, *pair in steps) == (z == 4).nonzero().tolist()
    number = (z == 4).cumsum(1) - 1
    for row in range(5):
        mine = [(step, int(number[row, position])) for step, r, position in steps if r == row]
        assert len({(step - position) % stride for step, position in mine}) <= 1
        assert int(made.nfe[row]) == len({step for step, _ in mine})


def test_every_offset_is_as_frequent():
    z = torch.full((4000, 8), 4)
    _, (first, *_) = traced(StridedSampler(stride=4, offset="random"), Hashed(4), z, torch.arange(4000))
    counts = torch.bincount(torch.tensor(first["positions"]) % 4) / 2
    # Binomial with p = 1/4: 1000 ± 27.
    assert (counts - 1000).abs().max() < 5 * 27.4
