"""Gaps in a text, and given tokens and masks in a row: the text outside the gaps comes back byte for byte."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atat_zoo.data.tokenizers.components import BPETokenizer, BytesTokenizer, CharactersTokenizer
from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel
from atat_zoo.generation.layout import CHOICES, Gap, SpaceAwareTokenizer, TextForm, parse
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.system.errors import UserError

ANCESTRAL = AncestralSampler()
TEXT = "the state of the union is strong and the people are free\n\nthe state of the people is just\n" * 20


@cache
def words(name):
    if name == "bpe":
        return SpaceAwareTokenizer(BPETokenizer(vocabulary_size=320).train(lambda: iter([TEXT])))
    if name == "bytes":
        return SpaceAwareTokenizer(BytesTokenizer().train(lambda: iter([])))
    if name == "characters":
        return SpaceAwareTokenizer(CharactersTokenizer(special_tokens=True, unknown="space").train(lambda: iter([])))
    return SpaceAwareTokenizer(LibraryModel(metaspace() if name == "metaspace" else word_pieces(), bos=None, eos=None))


def metaspace():
    known = ["<unk>", "▁", *"thestaofunip.", "▁the", "▁state", "▁of", "▁union", "state", "the"]
    made = Tokenizer(models.Unigram([(token, -10.0 / len(token)) for token in dict.fromkeys(known)], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    return made


def word_pieces():
    known = ["[UNK]", "the", "state", "of", "union", "##s", ".", "a"]
    made = Tokenizer(models.WordPiece({token: i for i, token in enumerate(known)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece()
    return made


def laid(text, name="bpe", *, special="none", length=1024):
    return TextForm(tokenizer=words(name).tokenizer, special=special, length=length).lay_out(parse(text))


PIECES = st.one_of(st.text(), st.sampled_from(["the state ", " of the", "\n\n", "  ", " ", "", "ŭ ", "union.\n"]))


@pytest.mark.parametrize("name", ["bpe", "bytes", "characters", "metaspace", "word pieces"])
@given(pieces=st.lists(PIECES.map(lambda text: text.replace("[MASK", "")), min_size=2, max_size=4), data=st.data())
def test_the_text_outside_the_gaps_comes_back_byte_for_byte(name, pieces, data):
    layout = laid("[MASK:2]".join(pieces), name, length=10_000)
    V = words(name).tokenizer.vocabulary_size
    (lengths,) = layout.choices
    row = layout.row(lengths)
    masked = [i for span in layout.spans(lengths) for i in span]
    assert [i for i, token in enumerate(row) if token == V] == masked
    for i in masked:
        allowed = words(name).openers if i in layout.opening(lengths) else range(V)
        row[i] = data.draw(st.sampled_from(allowed))
    fills = layout.fills(row, lengths)
    assert layout.text(fills) == "".join(p + f for p, f in zip(pieces, [*fills, ""], strict=True))
    if name in ("bpe", "bytes") and "\ufffd" not in "".join(fills):
        # The tokens themselves say the same.
        assert words(name).tokenizer.decode(row) == layout.text(fills)


def test_a_space_before_a_gap_is_left_to_it():
    tokenizer = words("bpe").tokenizer
    layout = laid("the state [MASK:2] the union")
    assert layout.pieces == (tuple(tokenizer.encode("the state")), tuple(tokenizer.encode(" the union")))
    assert layout.opens == (True,)
    assert layout.opening((2,)) == (len(layout.pieces[0]),)
    row = [*layout.pieces[0], *tokenizer.encode(" of"), *tokenizer.encode(" all"), *layout.pieces[1]]
    lengths = (len(row) - sum(map(len, layout.pieces)),)
    assert layout.text(layout.fills(row, lengths)) == "the state of all the union"
    # The tokens are those of the whole text, which the model has learned from.
    assert row == tokenizer.encode("the state of all the union")


@pytest.mark.parametrize("text", ["state.\n\n\n[MASK]", "state  [MASK]", "state[MASK]"])
def test_tokens_before_a_gap_are_those_before_a_word(text):
    piece = text.removesuffix("[MASK]")
    layout = laid(text)
    whole = words("bpe").tokenizer.encode(piece + ("the" if piece[-1:].isspace() else " the"))
    assert list(layout.pieces[0]) == whole[:-1]


def test_two_line_ends_that_are_one_token_at_the_end_are_two_before_a_gap():
    class Lines:
        vocabulary_size = 3

        def decode(self, ids):
            return "".join(("a", "\n", "\n\n")[i] for i in ids)

        def encode(self, text):
            return [*self.encode(text[:-2]), 2] if text.endswith("\n\n") else ["a\n".index(c) for c in text]

    assert SpaceAwareTokenizer(Lines()).before_gap("a\n\n") == ([0, 1, 1], False)


@pytest.mark.parametrize("name", ["bytes", "characters"])
def test_a_space_that_is_always_a_token_is_given(name):
    layout = laid("the [MASK] of", name)
    assert layout.opens == (False,)
    assert words(name).tokenizer.decode(layout.pieces[0]) == "the "


@pytest.mark.parametrize("name", ["metaspace", "word pieces"])
def test_tokenizers_that_drop_the_first_space(name):
    layout = laid("the [MASK] of", name)
    assert layout.opens == (True,)
    row = words(name).tokenizer.encode("the state of")
    assert layout.fills(row, (1,)) == ["state"]


def test_special_tokens_stand_at_the_two_ends():
    layout = laid("a[MASK]b", "bytes", special="sequence")
    assert layout.row((1,)) == [256, 97, 258, 98, 257]
    assert laid("a[MASK]b", "bytes", special="document").row((1,)) == [97, 258, 98]


def test_bounded_gaps_are_not_made_longer_than_fits():
    assert laid("a[MASK:1-9]b", "bytes", length=6).choices == ((1,), (2,), (3,), (4,))
    assert laid("a[MASK:1-2]b[MASK:1-9]", "bytes", length=6).choices == ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))
    assert laid("a[MASK:1-9]", "bytes", length=4, special="sequence").choices == ((1,),)


def test_a_text_that_does_not_fit():
    with pytest.raises(
        UserError, match="takes 2 tokens and its gaps at least 4, 6 in total, but the model's maximum length is 5"
    ):
        laid("a[MASK:4-9]b", "bytes", length=5)
    assert laid("a[MASK:3]b", "bytes", length=5).choices == ((3,),)
    with pytest.raises(UserError, match=r"allow 400 combinations of lengths, more than 256"):
        laid("[MASK:1-20][MASK:1-20]", "bytes")
    assert len(laid("[MASK:1-16][MASK:1-16]", "bytes").choices) == CHOICES


def test_a_space_behind_a_prompt_is_left_to_the_text():
    tokenizer = words("bpe").tokenizer
    V, prompt = tokenizer.vocabulary_size, "the state "
    ids = tokenizer.encode("the state")

    def request(prompt, length, sampler=ANCESTRAL):
        return TextForm(tokenizer=tokenizer, length=12).request(sampler, prompt=prompt, length=length)

    asked = request(prompt, 12)
    assert (asked.row, asked.opening) == ([*ids, *[V] * (12 - len(ids))], (len(ids),))
    # Of a longer text the model sees windows, in which positions move.
    asked = request(prompt, 13, SemiAutoregressiveSampler())
    assert asked.row[: len(ids) + 2] == [*tokenizer.encode(prompt), V]
    assert asked.opening == ()
    # The space takes a token in either case.
    with pytest.raises(UserError, match=f"take {len(ids) + 1} tokens, "):
        request(prompt, len(ids))
    assert request("the state", len(ids)).row == ids


PLAIN = st.text(st.characters(exclude_characters="["))
GAPS = st.tuples(st.integers(1, 50), st.integers(0, 20)).map(lambda pair: Gap(pair[0], sum(pair)))


def written(gap):
    if gap == Gap(1, 1):
        return "[MASK]"
    return f"[MASK:{gap.shortest}-{gap.longest}]" if gap.shortest < gap.longest else f"[MASK:{gap.shortest}]"


@given(PLAIN, st.lists(st.tuples(GAPS, PLAIN), min_size=1, max_size=4))
def test_what_is_written_is_read(first, rest):
    text = first + "".join(written(gap) + piece for gap, piece in rest)
    found = parse(text)
    assert found.pieces == (first, *(piece for _, piece in rest))
    assert found.gaps == tuple(gap for gap, _ in rest)


def test_brackets_that_are_no_gap_are_text():
    found = parse("[MASKED] [mask] [x] [[MASK]] [MASK")
    assert found.pieces == ("[MASKED] [mask] [x] [", "] [MASK")
    assert parse("[MASK:3-3]").gaps == (Gap(3, 3),)
    assert parse("[MASK][MASK:2]").pieces == ("", "", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a [MASK:0] b", r"'\[MASK:0\]' is an empty gap"),
        ("a [MASK:5-3] b", r"ends before it begins; write the smaller number first, \[MASK:3-5\]"),
        ("a [MASK:x] b", r"'\[MASK:x\]' is not a gap; write \[MASK\] for one token"),
        ("a [MASK:2-] b", "is not a gap"),
        ("a [MASK:٣] b", "is not a gap"),
        ("a [MASK:99999999999] b", "is not a gap"),
        ("a [MASK:3 b [MASK]", "is not a gap"),
        ("no gap at all", r"has no gap: 'no gap at all'; write \[MASK\]"),
    ],
)
def test_a_gap_that_is_none(text, said):
    with pytest.raises(UserError, match=f"^line 7.*{said}") as told:
        parse(text, "line 7")
    assert "\n" not in str(told.value)
