"""Gaps filled by samplers: given text stays, lengths follow Bayes' rule, and nothing depends on the company."""

import re
from functools import cache

import attrs
import pytest
import torch
from scipy.stats import chisquare

from atat_zoo.generation.guidance import ClassifierFreeGuidance, TokenBiasGuidance
from atat_zoo.generation.layout import SpaceAwareTokenizer, parse
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, LeftToRightSampler
from atat_zoo.generation.text_generator import TextGenerator, length_posterior, num_length_evaluations
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, Joint
from tests.generation.alphabet import Alphabet


class Letters:
    """a … h are 0 … 7; "␣x" for x in a … h are 8 … 15, a space alone is 16; V = 17. Others are an error."""

    vocabulary_size, bos, eos = 17, None, None
    table = (*"abcdefgh", *(f" {letter}" for letter in "abcdefgh"), " ")

    def encode(self, text):
        if not set(text) <= set("abcdefgh "):
            raise UserError(f"{text!r} has other letters")
        return [self.table.index(token) for token in re.findall(r" ?\w| ", text)]

    def byte_counts(self):
        return torch.tensor([len(text) for text in self.table])

    def decode(self, ids):
        return "".join("[MASK]" if i == 17 else self.table[i] for i in ids)


SYMBOLS = Alphabet("012")
CHAIN = torch.tensor([[0.05, 0.9, 0.05], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]], dtype=torch.float64)


@cache
def chain(length):
    """Return a stationary Markov chain of three tokens."""
    states = torch.cartesian_prod(*[torch.arange(3)] * length).view(-1, length)
    first = torch.linalg.matrix_power(CHAIN, 200)[0, states[:, 0]]
    weights = first * CHAIN[states[:, :-1], states[:, 1:]].prod(1)
    return Joint(weights, length=length, vocabulary_size=3)


def exact(tokens, t, where):
    return chain(tokens.shape[1]).denoiser(tokens, t, where)


def chains(length=8):
    return TextGenerator(denoiser=FunctionDenoiser(exact, 3), tokenizer=SYMBOLS, length=length)


def letters(**fields):
    return TextGenerator(**{"denoiser": Hashed(17), "tokenizer": Letters(), "length": 20} | fields)


def infill(text_generator, sampler, texts, **options):
    return text_generator.infill(sampler, text_generator.layouts(texts), **options)


TEXTS = ["abc [MASK:2] def", "[MASK]ab [MASK:3]", "abc [MASK:2] hgf", "a[MASK:1-3]b[MASK:2-4] c"]


def test_given_text_stays_and_gaps_have_their_lengths():
    made = infill(letters(), AncestralSampler(steps=4), TEXTS, number=5, seed=3)
    assert [len(fills) for fills in made.filled] == [5] * 4
    assert made.texts == [filled.text for fills in made.filled for filled in fills]
    for text, fills in zip(TEXTS, made.filled, strict=True):
        template = parse(text)
        for filled in fills:
            *pieces, last = template.pieces
            assert filled.text == "".join(p + f for p, f in zip(pieces, filled.fills, strict=True)) + last
            assert all(g.shortest <= n <= g.longest for g, n in zip(template.gaps, filled.lengths, strict=True))
            assert len(Letters().encode(filled.text)) <= 20
            assert 1 <= filled.nfe <= made.max_nfe <= 4
            assert "[MASK]" not in filled.text
    # After a space a word begins: the gap's first token is " x", of which the space was given.
    assert all(not filled.fills[0].startswith(" ") or filled.fills[0] == "" for filled in made.filled[0])


def test_a_fill_depends_on_its_seed_and_its_text_alone():
    def filled(texts, number, **options):
        return infill(letters(), AncestralSampler(steps=4), texts, number=number, **{"seed": 3} | options).filled

    many = filled(TEXTS, 6)
    assert filled(TEXTS[:3], 2, batch_size=1) == [each[:2] for each in many[:3]]
    assert filled(TEXTS, 6, seed=4) != many
    # The same text twice is filled differently.
    first, second = filled(TEXTS[:1] * 2, 3)
    assert first != second


def test_two_bounded_gaps_are_weighed_together():
    (layout,) = chains(7).layouts(["1[MASK:1-2]0[MASK:1-3]2"])
    weights = {}
    for lengths in layout.choices:
        row = torch.tensor(layout.row(lengths))
        joint = chain(len(row))
        weights[lengths] = float(joint.p[((row == joint.states) | (row == 3)).all(1)].sum())
    assert len(weights) == 5  # two and three tokens are eight with the given ones, one too many
    total = sum(weights.values())
    found = length_posterior(chains(7), layout)
    assert found == pytest.approx({n: w / total for n, w in weights.items()}, rel=1e-9)
    # Batches are nothing but batches.
    assert length_posterior(chains(7), layout, batch_size=1) == pytest.approx(found, rel=1e-12)


@pytest.mark.slow
def test_fills_and_lengths_are_drawn_from_the_exact_joint():
    """One at a time the fills are exact as well: (n, fill) has the probability that Bayes' rule gives it."""
    text, number = "0[MASK:1-3]01", 6000
    (layout,) = chains(6).layouts([text])
    expected = {}
    for (n,) in layout.choices:
        row, joint = torch.tensor(layout.row((n,))), chain(3 + n)
        for state, p in zip(joint.states, joint.p, strict=True):
            if ((row == state) | (row == 3)).all():
                expected["".join(map(str, state.tolist()))] = float(p)
    made = infill(chains(6), LeftToRightSampler(), [text], number=number, seed=1)
    assert set(made.texts) <= set(expected)
    total = sum(expected.values())
    counts = [made.texts.count(state) for state in expected]
    assert chisquare(counts, [number * p / total for p in expected.values()]).pvalue > 0.001


def test_a_banned_word_that_is_given_leaves_the_lengths_as_they_were():
    banning = TokenBiasGuidance(words=(), ban=("c",)).guide(letters())
    made = infill(banning, LeftToRightSampler(), ["ab[MASK:1-3] c de"], number=4)
    assert all(0 < probability < 1 for probability in made.lengths[0].values())
    assert sum(made.lengths[0].values()) == pytest.approx(1)
    assert all(text.endswith(" c de") for text in made.texts)


def test_lengths_may_be_weighed_without_the_guidance():
    free = letters()
    # Of one token, the gap cannot be the middle of the phrase: a ban would leave that length alone.
    banning = TokenBiasGuidance(words=(), ban=("b c d",)).guide(free)
    texts = ["a[MASK:1-3] d"]
    plain = infill(free, LeftToRightSampler(), texts).lengths
    assert infill(banning, LeftToRightSampler(), texts, weigher=free).lengths == plain
    assert infill(banning, LeftToRightSampler(), texts).lengths != plain


def test_a_gap_at_the_end_has_any_of_its_lengths():
    (layout,) = chains(8).layouts(["01[MASK:1-4]"])
    assert length_posterior(chains(), layout) == pytest.approx({(n,): 0.25 for n in (1, 2, 3, 4)})
    assert num_length_evaluations(layout) == 0


def test_the_length_of_a_gap_follows_from_so_much_text_behind_each_gap():
    behind = "01" * 20
    (layout,) = chains(60).layouts([f"0[MASK]1[MASK:1-2]{behind}[MASK]012"])
    assert layout.choices == ((1, 1, 1), (1, 2, 1))
    # 32 of the 40 behind the gap of two lengths, and the three behind the next; none behind the first.
    assert num_length_evaluations(layout) == 2 * (32 + 3)
    asked = []

    def denoise(tokens, t, where):
        asked.extend(where.nonzero()[:, 1].tolist())
        for z, at in zip(tokens[:, :48], where.int().argmax(1).tolist(), strict=True):
            # Visible is what is given and to the left.
            assert (z != 3).nonzero()[:, 0].tolist() == [i for i in range(at) if i not in gaps]
        return torch.full((len(tokens), 3), 1 / 3).log()

    gaps, weigher = (1, 3, 44), attrs.evolve(chains(60), denoiser=FunctionDenoiser(denoise, 3))
    length_posterior(weigher, attrs.evolve(layout, choices=(layout.choices[0],) * 2))
    assert asked == 2 * [*range(4, 36), 45, 46, 47]


def test_the_first_token_after_a_space_is_drawn_given_that_it_begins_with_one():
    words = SpaceAwareTokenizer(Letters())
    assert words.openers == list(range(8, 17))
    told = letters().opening((3,), words).denoiser
    z, where = torch.full((2, 5), 17), torch.ones(2, 5, dtype=torch.bool)
    plain, given = Hashed(17)(z, None, where), told(z, None, where)
    at = torch.arange(5).repeat(2) == 3
    assert torch.equal(plain[~at], given[~at])
    assert (given[at][:, :8] == -torch.inf).all()
    assert torch.allclose(given[at].exp().sum(1), torch.ones(2, dtype=torch.float64))
    differences = (plain - given)[at][:, 8:]
    assert torch.allclose(differences, differences[:, :1].expand_as(differences))
    # Positions as indices say the same.
    assert torch.equal(told(z, None, where.nonzero().unbind(1)), given)
    assert letters().opening((), words).denoiser.__class__ is Hashed


def test_a_banned_space_gives_way():
    """Guidance may have left none of the tokens that begin with a space: then p_θ stays what it is, and a number."""

    def bare(tokens, t, where):
        log_probs = Hashed(17)(tokens, t, where)
        return log_probs.index_fill(1, torch.arange(8, 17), -torch.inf).log_softmax(-1)

    z, text_generator = torch.full((1, 3), 17), letters(denoiser=FunctionDenoiser(bare, 17))
    found = text_generator.opening((1,), SpaceAwareTokenizer(Letters())).denoiser(z, None, z == 17)
    assert torch.equal(found, bare(z, None, z == 17))
    assert infill(text_generator, LeftToRightSampler(), ["ab [MASK:2] c"]).texts[0].startswith("ab ")


def test_evaluations_of_two_passes_count_as_two():
    one, two = (infill(attrs.evolve(chains(), cost=cost), LeftToRightSampler(), ["0[MASK:1-3]01"]) for cost in (1, 2))
    assert two.evaluations == 2 * one.evaluations == 12
    assert [f.nfe for f in two.filled[0]] == [2 * f.nfe for f in one.filled[0]]
    assert two.max_nfe == 2 * one.max_nfe


def test_a_model_that_reads_only_what_is_before_cannot_choose_a_length():
    def causal(tokens, t, where):
        raise UserError("objective 'autoregressive' predicts a token from the tokens before it")

    text_generator = letters(denoiser=FunctionDenoiser(causal, 17))
    text_generator.denoiser.block_size = 1
    with pytest.raises(UserError, match=r"reads from left to right; fix the length, as in \[MASK:3\]"):
        infill(text_generator, LeftToRightSampler(), ["a[MASK:1-3]bc"])
    # Another mistake is said as it is.
    guided = ClassifierFreeGuidance(condition="bb").guide(letters())
    with pytest.raises(UserError, match="no sequence begins with 'bb'"):
        infill(guided, LeftToRightSampler(), ["ab[MASK:1-3] c"])


def test_every_text_that_is_wrong_is_named():
    with pytest.raises(UserError) as told:
        infill(chains(), LeftToRightSampler(), ["0[MASK]", "00", "0[MASK:9]0"])
    first, second = str(told.value).splitlines()
    assert first.startswith("text 2 has no gap")
    assert second.startswith(
        "text 3 takes 2 tokens and its gaps at least 9, 11 in total, but the model's maximum length is 8"
    )


def test_a_prompt_with_a_space_at_its_end():
    made = letters().write(AncestralSampler(steps=4), number=20, prompt="abc ", suffix=" d")
    assert all(text.startswith("abc ") and text.endswith(" d") for text in made.texts)
    # " a" … " h", or the space alone: never a space and then another token.
    assert (made.sample.tokens[:, 3] >= 8).all()
    assert letters().write(LeftToRightSampler(), prompt="abc ", suffix="", length=4).texts[0].startswith("abc ")
