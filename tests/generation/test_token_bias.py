"""Words raised, lowered and banned."""

import attrs
import pytest
import torch

from atat_zoo.errors import UserError
from atat_zoo.generation.guidance import CombinedGuidance, NoGuidance, TokenBiasGuidance
from atat_zoo.samplers.published import AncestralSampler
from atat_zoo.testing import check_guidance
from atat_zoo.testing.guidance import toy_writer
from atat_zoo.testing.toys import FunctionDenoiser
from atat_zoo.tokenizers.terms import Terms

WRITER = toy_writer()
MASK = WRITER.tokenizer.vocabulary_size


def all_masks(rows=2, length=8):
    z = torch.full((rows, length), MASK)
    return z, torch.ones_like(z, dtype=torch.bool)


@pytest.mark.slow
@pytest.mark.parametrize(
    "guidance",
    [
        TokenBiasGuidance(words=("cab", "of it"), strength=-3.0),
        TokenBiasGuidance(words=("e",), tokens=(3, 4), strength=50.0, ban=("a", "cab", "i")),
        CombinedGuidance(first=TokenBiasGuidance(words=("a",)), second=TokenBiasGuidance(words=(), ban=("b",))),
    ],
    ids=str,
)
def test_conformance(guidance):
    check_guidance(guidance)


def test_a_token_is_raised_by_exactly_its_strength():
    """Golden: p becomes p · exp(s), normalised."""
    z, where = all_masks()
    plain = WRITER.denoiser(z, None, where).double().exp()
    plain[:, 5] *= 2.718281828459045**1.5
    guided = TokenBiasGuidance(words=(), tokens=(5,), strength=1.5).guide(WRITER).denoiser(z, None, where)
    assert torch.allclose(guided.double().exp(), plain / plain.sum(-1, keepdim=True), atol=1e-6)


def test_strength_zero_is_the_same_writer_unless_something_is_banned():
    assert TokenBiasGuidance(words=("a",), strength=0.0).guide(WRITER) is WRITER
    assert TokenBiasGuidance(words=("a",), strength=0.0, ban=("b",)).guide(WRITER) is not WRITER


def test_combined_with_nothing_is_nothing():
    assert CombinedGuidance().guide(WRITER) is WRITER
    assert NoGuidance().guide(WRITER) is WRITER


@pytest.mark.parametrize("steps", [1, 16])
def test_banned_words_never_come(steps):
    # Few letters are likely, so that the words would come by themselves.
    likely = TokenBiasGuidance(words=(), tokens=tuple(WRITER.tokenizer.encode(" ab")), strength=6.0)
    banned = ("ab", "a", "ba b")
    z, _ = all_masks(200, 16)
    terms = Terms(WRITER.tokenizer, banned)
    free = likely.guide(WRITER).fill(AncestralSampler(steps=steps), z).tokens
    assert terms.occurrences(free).any(1).float().mean() > 0.5
    kept = attrs.evolve(likely, ban=banned).guide(WRITER).fill(AncestralSampler(steps=steps), z).tokens
    assert not terms.occurrences(kept).any()


def test_a_ban_gives_way_where_nothing_else_is_possible():
    z = torch.tensor([[*WRITER.tokenizer.encode("a ca"), MASK]])
    only = torch.full((1, MASK), -torch.inf)
    only[0, WRITER.tokenizer.encode("b")[0]] = 0.0
    writer = attrs.evolve(WRITER, denoiser=FunctionDenoiser(lambda tokens, t, where: only, MASK))
    guided = TokenBiasGuidance(words=(), ban=("cab",)).guide(writer)
    assert torch.equal(guided.denoiser(z, None, z == MASK), only)


@pytest.mark.parametrize(
    ("guidance", "says"),
    [
        (TokenBiasGuidance(words=()), "names no word"),
        (TokenBiasGuidance(words=("cab", "naïve")), "guidance.words: 'naïve' is unknown"),
        (TokenBiasGuidance(words=(), ban=("naïve",)), "guidance.ban: 'naïve' is unknown"),
        (TokenBiasGuidance(words=(), tokens=(27,)), r"^guidance\.tokens: there is no token 27"),
        (TokenBiasGuidance(words=("abcdefghijklmnopqrstuvw",)), "takes 23 tokens and a text has 16"),
    ],
)
def test_mistakes_are_said_in_a_sentence(guidance, says):
    with pytest.raises(UserError, match=says):
        guidance.guide(WRITER)


def test_a_denoiser_keeps_what_else_it_can_do():
    guided = TokenBiasGuidance(words=("a",)).guide(WRITER).denoiser
    z, where = all_masks()
    log_probs, weights = guided.ordered(z, None, where)
    assert torch.equal(log_probs, guided(z, None, where))
    assert torch.equal(weights, WRITER.denoiser.ordered(z, None, where)[1])
    assert guided.gives_order_weights
    plain = attrs.evolve(WRITER, denoiser=FunctionDenoiser(WRITER.denoiser, MASK))
    assert not TokenBiasGuidance(words=("a",)).guide(plain).denoiser.gives_order_weights
