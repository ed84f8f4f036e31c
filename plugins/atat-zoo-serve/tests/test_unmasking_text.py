"""What a stream says of a text: its beginning only grows, up to the whole, whatever the order of its tokens."""

from __future__ import annotations

import itertools

import pytest
from atat_zoo_serve.responses import UnmaskingText
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.generation.layout import SpaceAwareTokenizer, TextForm, parse
from atat_zoo.registry import Zoo

TEXT = [
    "the people of the nation keep the peace, and the state of it is good. naïve café — 日本語 \N{GRINNING FACE}\n"
] * 9
TEXTS = ["[MASK:6]", "the [MASK:3] of [MASK] é", "a[MASK:2][MASK:2-3]", "the people \n[MASK:4]"]
TOKENIZERS = {
    "bpe": {"use": "bpe", "vocabulary_size": 300},
    "bytes": {"use": "bytes"},
    "characters": {"use": "characters", "unknown": "space"},
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def words(request):
    return SpaceAwareTokenizer(Zoo.load().spec("tokenizer", TOKENIZERS[request.param]).train(lambda: iter(TEXT)))


@given(st.sampled_from(TEXTS), st.sampled_from(["none", "sequence"]), st.randoms(use_true_random=False), st.data())
def test_the_beginning_grows_up_to_the_whole(words, text, special, draw, data):
    form = TextForm(tokenizer=words.tokenizer, special=special, length=40)
    layout = form.lay_out(parse(text))
    end = data.draw(st.none() | st.integers(0, words.tokenizer.vocabulary_size - 1))
    unmasking = UnmaskingText(layout=layout, lengths=draw.choice(layout.choices), end=end)
    masked = [i for i, token in enumerate(unmasking.ids) if token == unmasking.mask_id]
    draw.shuffle(masked)
    opening, before = layout.opening(unmasking.lengths), ""
    for number, position in enumerate(masked):
        ids = words.openers if position in opening and words.openers else range(unmasking.mask_id)
        unmasking.draw([position], [data.draw(st.sampled_from(list(ids) + [end] * (end is not None)))])
        final, whole = unmasking.final()
        assert final.startswith(before)
        spans = [[unmasking.ids[i] for i in span] for span in layout.spans(unmasking.lengths)]
        written = [list(itertools.takewhile(lambda token: token != end, ids)) for ids in spans]
        assert whole == (unmasking.mask_id not in itertools.chain(*written))
        before, state = final, unmasking.state()
        assert sum(segment.get("masked", 0) for segment in state) == sum(
            ids.count(unmasking.mask_id) for ids in written
        )
        assert [segment["given"] for segment in state if "given" in segment] == [p for p in layout.template.pieces if p]
        if end is None:
            assert sum("new" in segment for segment in state) == 1
            assert whole == (number == len(masked) - 1)
    assert unmasking.written == [*itertools.chain(*written)]
    assert unmasking.ended == (written != spans)
    if end is None:
        assert final == layout.text(layout.fills(unmasking.ids, unmasking.lengths))
    unmasking.new = frozenset()
    assert "".join(text for segment in unmasking.state() for text in segment.values()) == final


def test_a_half_of_a_character_is_not_final_and_what_is_masked_again_is_masked():
    tokenizer = Zoo.load().spec("tokenizer", "bytes").train(lambda: iter(()))
    unmasking = UnmaskingText(layout=TextForm(tokenizer=tokenizer, length=9).lay_out(parse("é[MASK:3]")), lengths=(3,))
    unmasking.draw([2], [195])
    assert unmasking.final() == ("é", False)
    unmasking.draw([3, 4], [169, 101])
    assert unmasking.final() == ("ééé"[:2] + "e", True)
    unmasking.draw([2], [unmasking.mask_id])
    assert unmasking.final() == ("é", False)
    assert unmasking.state()[:2] == [{"given": "é"}, {"masked": 1}]
