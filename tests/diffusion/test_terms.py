"""Words as tokens: their forms, where they stand, what a piece of one adds, and what must not be drawn."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.tokenizers.components import BPETokenizer, CharactersTokenizer
from atat_zoo.diffusion.terms import Terms, biased, forms_of
from atat_zoo.system.errors import UserError

LETTERS = CharactersTokenizer().train(lambda: iter(()))
TEXT = "the war and the peace of the people, and the wars of the past. War is no peace. " * 40


@pytest.fixture(scope="module")
def bpe():
    return BPETokenizer(vocabulary_size=300).train(lambda: iter([TEXT]))


def ids(text):
    return torch.tensor([LETTERS.encode(text)])


def masked(text):
    """Return z, with a mask for each underscore."""
    return torch.tensor([[LETTERS.vocabulary_size if c == "_" else LETTERS.encode(c)[0] for c in text]])


def told(terms, text):
    return "".join(c if there else "." for c, there in zip(text, terms.occurrences(ids(text))[0].tolist(), strict=True))


def test_a_word_has_its_forms(bpe):
    found = {bpe.decode(form) for form in forms_of(bpe, "war")}
    assert found == {"war", " war", "War", " War"}
    assert {bpe.decode(form) for form in forms_of(bpe, "War")} == {"War", " War"}


def test_what_cannot_be_found_is_named(bpe):
    for word, message in (("  ", "not a word"), ("qxjzv", "'qxjzv' is unknown")):
        with pytest.raises(UserError, match=message):
            forms_of(bpe, word)
    with pytest.raises(UserError, match="'œuvre' is unknown to the tokenizer, which cannot encode it"):
        forms_of(LETTERS, "œuvre")
    with pytest.raises(UserError, match="'peace' takes 5 tokens, but a sequence has 4"):
        Terms(LETTERS, ["peace"], longest=4)
    for token in (-1, 27):
        with pytest.raises(UserError, match=rf"^tokens: the vocabulary has no token {token}; ids go from 0 to 26$"):
            Terms(LETTERS, [], tokens=[token])
    assert Terms(LETTERS, [], tokens=[0, 26]).pieces.tolist() == [0, 26]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("war and peace", "war.........."),
        ("a war", ". war"),
        ("forward wars ward", "................."),
        ("no war no war", ".. war... war"),
    ],
)
def test_words_are_found_whole(text, found):
    assert told(Terms(LETTERS, ["war"]), text) == found
    assert not Terms(LETTERS, ["war"]).occurrences(masked(text.replace("a", "_"))).any()


def test_bare_tokens_are_found_anywhere():
    assert told(Terms(LETTERS, [], tokens=LETTERS.encode("w")), "forward wars") == "...w....w..."


def test_pieces_gain_with_what_is_there():
    terms = Terms(LETTERS, ["war"])
    gains = terms.gains(masked("o_w_r_"))[0]
    place = {LETTERS.decode([int(piece)]): i for i, piece in enumerate(terms.pieces)}
    # " war" with w, r in place lacks the space and the a: two of four are there. "war" itself may not begin here.
    assert gains[1, place[" "]] == pytest.approx(3 / 4)
    assert gains[3, place["a"]] == pytest.approx(3 / 4)
    # Nothing is to be gained at a visible place, nor by what does not fit.
    assert gains[2].abs().sum() == 0
    assert gains[1, place["w"]] == 0


def test_a_form_without_a_space_waits_for_what_is_before_it():
    terms = Terms(LETTERS, ["war"])
    place = {LETTERS.decode([int(piece)]): i for i, piece in enumerate(terms.pieces)}
    begins, open_, inside = (terms.gains(masked(text))[0, -1, place["r"]] for text in ("wa_", "_wa_", "owa_"))
    assert begins == pytest.approx(1.0)
    assert open_ == pytest.approx(3 / 4)  # as " war", whose space may still come
    assert inside == 0


def test_behind_its_end_a_text_may_go_on():
    """A window of a longer text ends there, so a word may be begun, and one that is only begun is not forbidden."""
    terms = Terms(LETTERS, ["war"])
    assert terms.gains(masked("of wa_"))[0, -1].max() == 1
    assert terms.gains(masked("of _"))[0, -1].max() == pytest.approx(2 / 4)
    assert not terms.forbidden(masked("of _")).any()


def test_the_potential_rises_by_one_along_any_way_to_the_word():
    """A piece's gain less what a broken-off word loses sums to 1 in whatever order."""
    terms = Terms(LETTERS, ["war"])
    place = {LETTERS.decode([int(piece)]): i for i, piece in enumerate(terms.pieces)}
    word = " war"
    for order in itertools.permutations(range(4)):
        z = masked("o____")
        potential = 0.0
        for m, k in enumerate(order):
            gain = float(terms.gains(z)[0, k + 1, place[word[k]]])
            assert gain == pytest.approx((m + 1) / 4)
            potential += gain - m / 4  # what it would fall by if the word were broken off
            z[0, k + 1] = LETTERS.encode(word[k])[0]
        assert potential == pytest.approx(1.0)


@given(st.integers(0, 2**31), st.integers(1, 12))
def test_a_banned_word_cannot_be_completed_in_any_number_of_steps(seed, steps):
    """Whatever is drawn of what is not forbidden, from whatever is left, in one step or several."""
    generator = torch.Generator().manual_seed(seed)
    # Few letters, so that the words would come by themselves.
    letters = torch.tensor(LETTERS.encode(" abab"))
    terms = Terms(LETTERS, ["ab", "ba b", "a"])
    z = torch.full((4, 12), LETTERS.vocabulary_size)
    while bool((z == LETTERS.vocabulary_size).any()):
        forbidden = torch.zeros(*z.shape, LETTERS.vocabulary_size, dtype=torch.bool)
        forbidden[:, :, terms.pieces] = terms.forbidden(z)
        allowed = ~forbidden[:, :, letters]
        chance = torch.rand(*z.shape, len(letters), generator=generator) * allowed
        drawn = torch.where(allowed.any(-1), letters[chance.argmax(-1)], LETTERS.encode("z")[0])
        now = (torch.rand(z.shape, generator=generator) < 1 / steps) & (z == LETTERS.vocabulary_size)
        z = torch.where(now, drawn, z)
    assert not terms.occurrences(z).any()


def test_nothing_is_forbidden_that_leads_nowhere():
    terms = Terms(LETTERS, ["war"])
    assert not terms.forbidden(masked("he saw_")).any()
    assert not terms.forbidden(masked("oxwa_")).any()
    assert terms.forbidden(masked("ox wa_"))[0, -1].sum() == 1


@given(st.floats(-1, 1), st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9))
def test_biased_importance_stays_in_range_and_is_a_share_of_the_way(strength, values):
    importance = torch.tensor(values)
    there = torch.arange(len(values)) % 2 == 0
    found = biased(importance, there, strength)
    assert ((found >= 0) & (found <= 1)).all()
    assert torch.equal(found[~there], importance[~there])
    end = 1.0 if strength > 0 else 0.0
    wanted = importance + abs(strength) * (end - importance)
    assert torch.allclose(found[there], wanted[there], atol=1e-6)


def test_long_batches_are_counted_in_parts(monkeypatch):
    terms = Terms(LETTERS, ["war", "peace"])
    z = masked("a w__ and _eac_ of wa_ ").repeat(7, 1)
    whole = terms.gains(z)
    monkeypatch.setattr("atat_zoo.diffusion.terms._AT_ONCE", 1)
    assert torch.equal(terms.gains(z), whole)
