"""Words raised, lowered and banned; words made more important."""

import attrs
import pytest
import torch

from atat_zoo.data.tokenizers.terms import Terms
from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.generation.guidance import CombinedGuidance, ImportanceBiasGuidance, NoGuidance, TokenBiasGuidance
from atat_zoo.generation.guided import Guided
from atat_zoo.generation.samplers.published import AncestralSampler
from atat_zoo.testing import check_guidance
from atat_zoo.testing.guidance import toy_writer
from atat_zoo.testing.toys import FunctionDenoiser, Hashed

WRITER = toy_writer()
MASK = WRITER.tokenizer.vocabulary_size


def all_masks(rows=2, length=8):
    z = torch.full((rows, length), MASK)
    return z, z == MASK


@pytest.mark.slow
@pytest.mark.parametrize(
    "guidance",
    [
        TokenBiasGuidance(words=("cab", "of it"), strength=-3.0),
        TokenBiasGuidance(words=("e",), tokens=(3, 4), strength=50.0, ban=("a", "cab", "i")),
        ImportanceBiasGuidance(words=("cab",), strength=0.5),
        ImportanceBiasGuidance(words=("cab",), strength=-1.0),
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


def test_nothing_is_the_same_writer():
    for guidance in (TokenBiasGuidance(words=("a",), strength=0.0), CombinedGuidance(), NoGuidance()):
        assert guidance.guide(WRITER) is WRITER
    assert TokenBiasGuidance(words=("a",), strength=0.0, ban=("b",)).guide(WRITER) is not WRITER


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
        (TokenBiasGuidance(words=()), "token_bias names no word"),
        (ImportanceBiasGuidance(words=()), "importance_bias names no word"),
        (ImportanceBiasGuidance(words=("naïve",)), "guidance.words: 'naïve' is unknown"),
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


def test_what_words_do_not_change_is_the_models_own():
    guided, (z, where) = TokenBiasGuidance(words=("a",)).guide(WRITER).denoiser, all_masks()
    visible = (torch.tensor([1, 0]), torch.tensor([2, 5]))
    z[visible], where = torch.tensor([3, 4]), torch.arange(8) < 2
    log_probs, own = guided.everywhere(z, None, where.expand(2, -1), visible)
    assert torch.equal(log_probs, guided(z, None, where.expand(2, -1)))
    assert torch.equal(own, WRITER.denoiser.everywhere(z, None, where.expand(2, -1), visible)[1])
    assert torch.equal(guided.importance(TEXT, NONE), WRITER.denoiser.importance(TEXT, NONE))


FACTS = {"reads_time": True, "window": 9, "block_size": 3, "frame": ([1], [2]), "importance_reads": "z"}
FACTS |= {"gives_order_weights": True, "scores_visible_tokens": False, "estimates_importance": True}


@pytest.mark.parametrize("facts", [FACTS, {name: not value for name, value in FACTS.items()}], ids=["some", "others"])
def test_what_a_denoiser_is_stays_so(facts):
    own = Hashed(MASK)
    for name, value in facts.items():
        setattr(own, name, value)
    own.time_at = lambda rate: rate + 2
    guided = Guided(own)
    assert {name: getattr(guided, name) for name in facts} == facts
    assert guided.mask_id == MASK
    assert float(guided.time_at(torch.tensor(0.5))) == 2.5
    weighed = Guided(own, importance=lambda tokens, masked: tokens + masked)
    assert (weighed.estimates_importance, weighed.importance_reads) == (True, "x")
    assert torch.equal(weighed.importance(TEXT, THERE), TEXT + THERE)


TEXT = torch.tensor([WRITER.tokenizer.encode("a cab and no cab")])
THERE = torch.tensor([[c == "x" for c in "-xxxx-------xxxx"]])
NONE = torch.zeros_like(THERE)


@pytest.mark.parametrize(("weighed", "strength"), [(True, 0.25), (False, -0.5)])
def test_importance_moves_at_the_words_alone(weighed, strength):
    writer = toy_writer(weighed=weighed)
    # Without an estimator it starts from a half.
    before = writer.denoiser.importance(TEXT, NONE) if weighed else torch.full(TEXT.shape, 0.5)
    after = ImportanceBiasGuidance(words=("cab",), strength=strength).guide(writer).denoiser.importance(TEXT, NONE)
    moved = before + strength * (1 - before if strength > 0 else before)
    torch.testing.assert_close(after, torch.where(THERE, moved, before))


def test_an_estimator_that_reads_masks_gets_them_while_the_words_are_those_of_the_draft():
    mask_id, hidden = WRITER.denoiser.mask_id, torch.tensor([[i in (2, 14) for i in range(16)]])

    def share_of_masks(tokens, masked):
        assert torch.equal(tokens == mask_id, masked)
        return (tokens == mask_id).float()

    denoiser = Hashed(mask_id, importance=share_of_masks, importance_reads="z")
    guided = ImportanceBiasGuidance(words=("cab",), strength=0.25).guide(attrs.evolve(WRITER, denoiser=denoiser))
    found = guided.denoiser.importance(TEXT, hidden)
    assert torch.equal(found, torch.where(hidden, 1.0, torch.where(THERE, 0.25, 0.0)))


@pytest.mark.parametrize("sampler", ["ancestral", "strided", "semi_autoregressive", "left_to_right"])
def test_a_sampler_that_does_not_look_is_told(sampler):
    overrides = ["guidance.use=importance_bias", 'guidance.words=["war"]']
    with pytest.raises(UserError, match=f"{sampler!r} does not"):
        load("quickstart", [*overrides, f"sampler.use={sampler}"])
    load("quickstart", [*overrides, "sampler.use=uncertainty_guided"])
    load("quickstart", [*overrides, "sampler={use='semi_autoregressive', within='uncertainty_guided'}"])


def test_inside_of_combined_it_says_where_it_stands():
    experiment = load("quickstart", ["sampler.use=ancestral"])
    inner = ImportanceBiasGuidance(words=("war",))
    (problem,) = CombinedGuidance(first=inner).check(experiment)
    assert problem.key == "guidance.first"
    (problem,) = CombinedGuidance(second=CombinedGuidance(first=inner)).check(experiment)
    assert problem.key == "guidance.second.first"
