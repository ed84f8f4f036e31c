"""Packing, against the concatenation written out."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.pack import PIECE, Form, Packer, batches, dtype_for, encode, pieces, spread
from atat_zoo.data.tokenizers.library import BytesModel, CharactersModel
from atat_zoo.errors import UserError

words = st.text(st.sampled_from("ab \n é"), max_size=30)
documents = st.lists(words, max_size=8)
forms = st.sampled_from(["packed", "document"])


SETTINGS = {"length": 5, "special": "none", "remainder": "drop", "dtype": "uint16"}


def packed(texts, chunk=1, **settings):
    packer, rows = Packer(BytesModel(), **SETTINGS | settings), []
    for batch in batches(texts, settings.get("rows", "packed")):
        packer.add(packer.encode(batch))
        while packer.ready >= chunk:
            rows.append(packer.take(chunk))
    rows += [packer.take(packer.ready)] if packer.ready else []
    return packer, np.concatenate([*rows, packer.finish()])


@given(documents, st.integers(1, 3), st.sampled_from(["drop", "pad"]), st.sampled_from(["none", "document"]))
def test_the_tokens_follow_each_other(texts, chunk, remainder, special):
    packer, rows = packed(texts, chunk, remainder=remainder, special=special)
    end = [257] if special == "document" else []
    running = [token for text in texts for token in [*text.encode(), *end]]
    stored = [token for token in rows.reshape(-1).tolist() if token != 65535]
    kept = len(running) if remainder == "pad" else len(running) // 5 * 5
    assert stored == running[:kept]
    totals = packer.totals
    assert rows.dtype == np.uint16
    assert (totals.documents, totals.tokens, totals.dropped) == (len(texts), kept, len(running) - kept)
    assert totals.sequences * 5 == rows.size == totals.tokens + totals.padded
    assert totals.characters == sum(map(len, texts))
    assert totals.bytes == sum(len(text.encode()) for text in texts)
    assert totals.words == sum(len(text.split()) for text in texts)
    assert totals.special_tokens == stored.count(257)
    assert packer.counts.tolist() == np.bincount(stored, minlength=258).tolist()
    if rows.size:
        assert (rows[:-1] != 65535).all()  # only the last sequence is padded, at its end
        assert (np.diff((rows[-1] == 65535).astype(int)) >= 0).all()


@given(documents, st.sampled_from(["drop", "pad"]), st.booleans())
def test_every_sequence_begins_and_ends(texts, remainder, ended):
    packer, rows = packed(texts, special="both" if ended else "sequence", remainder=remainder)
    running = [token for text in texts for token in [*text.encode(), *([257] if ended else [])]]
    kept = running if remainder == "pad" else running[: len(running) // 3 * 3]
    bodies = [kept[start : start + 3] for start in range(0, len(kept), 3)]
    assert rows.tolist() == [[256, *body, 257] + [65535] * (3 - len(body)) for body in bodies]
    assert packer.totals.special_tokens == 2 * len(rows) + kept.count(257)
    assert packer.totals.dropped == len(running) - len(kept)


@given(
    documents,
    st.integers(1, 3),
    st.sampled_from(["none", "document", "sequence", "both"]),
    st.sampled_from(["drop", "pad"]),
    st.integers(3, 20),
)
def test_a_row_a_document(texts, chunk, special, remainder, length):
    begin, end = [256] * (special in ("sequence", "both")), [257] * (special != "none")
    bodies = [list(text.encode())[: length - len(begin) - len(end)] for text in texts]
    expected = [[*begin, *body, *end] for body in bodies if body]
    packer, rows = packed(texts, chunk, special=special, remainder=remainder, length=length, rows="document")
    assert rows.shape == (len(expected), length)
    assert rows.dtype == np.uint16
    assert rows.tolist() == [row + [65535] * (length - len(row)) for row in expected]
    totals, stored = packer.totals, [token for row in expected for token in row]
    assert (totals.documents, totals.sequences, totals.tokens) == (len(texts), len(expected), len(stored))
    assert totals.padded == rows.size - len(stored)
    assert totals.special_tokens == len(expected) * len(begin + end)
    assert totals.dropped == sum(len(text.encode()) for text in texts) - sum(map(len, bodies))
    assert packer.counts.tolist() == np.bincount(stored, minlength=258).tolist()


def test_a_long_document_counts_with_its_first_piece_or_ends_once():
    packer, rows = packed(["é" * (PIECE + 5), "b"], special="document", rows="document")
    assert rows.tolist() == [[195, 169, 195, 169, 257], [98, 257, 65535, 65535, 65535]]
    assert (packer.totals.documents, packer.totals.characters) == (2, PIECE + 1)
    assert packer.totals.dropped == 2 * PIECE - 4
    packer, rows = packed(["a" * (PIECE + 5), "b"], chunk=1 << 16, special="document", remainder="pad")
    assert np.flatnonzero(rows == 257).tolist() == [PIECE + 5, PIECE + 7]
    assert packer.totals.documents == 2


@given(documents, st.integers(1, 3), st.sampled_from(["drop", "pad"]), st.integers(1, 8), forms)
def test_a_limit_keeps_the_first_sequences(texts, chunk, remainder, limit, form):
    _, whole = packed(texts, chunk, remainder=remainder, rows=form)
    packer, rows = packed(texts, chunk, remainder=remainder, limit=limit, rows=form)
    assert rows.tolist() == whole[:limit].tolist()
    assert packer.totals.sequences == len(rows)
    assert packer.full == (len(rows) == limit)
    running = sum(len(text.encode()) for text in texts)
    assert packer.totals.dropped == running - packer.totals.tokens


@given(documents, st.integers(0, 6), forms)
def test_restored_packer_goes_on(texts, cut, form):
    settings = SETTINGS | {"special": "document", "remainder": "pad", "rows": form}
    whole, halves, later = (Packer(BytesModel(), **settings) for _ in range(3))
    encoded = [whole.encode(next(batches([text], form))) for text in texts]
    for batch in encoded:
        whole.add(batch)
    for batch in encoded[:cut]:
        halves.add(batch)
    later.restore(*halves.state())
    for batch in encoded[cut:]:
        later.add(batch)
    if whole.ready:
        assert later.take(later.ready).tolist() == whole.take(whole.ready).tolist()
    assert later.finish().tolist() == whole.finish().tolist()
    assert later.totals == whole.totals
    assert later.counts.tolist() == whole.counts.tolist()


@given(st.text(st.sampled_from("ab \n\té"), max_size=200), st.integers(1, 50))
def test_pieces_are_the_document(document, size):
    found = list(pieces(document, size))
    assert "".join(piece.text for piece in found) == document
    assert all(len(piece.text) <= size for piece in found)
    assert sum(piece.words for piece in found) == len(document.split())
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]


def test_pieces_are_cut_between_words():
    assert [piece.text for piece in pieces("aaaa bbbb cccc", 10)] == ["aaaa bbbb", " cccc"]
    assert [piece.text for piece in pieces("aaaa bbbb cccc", 9)] == ["aaaa bbbb", " cccc"]
    assert [piece.text for piece in pieces("aaaa  bb\ncc", 8)] == ["aaaa  bb", "\ncc"]
    assert [piece.text for piece in pieces("a" * 25, 10)] == ["a" * 10, "a" * 10, "a" * 5]


def test_a_dialogue_is_one_piece_however_long_and_a_document_of_a_row_its_first():
    long = "x" * (2 * PIECE + 1)
    sizes = {
        how: [[len(piece.text) for piece in batch] for batch in batches([long, "y"], *how)]
        for how in (("packed", "chat"), ("document", "chat"), ("packed", "text"), ("document", "text"))
    }
    assert sizes["packed", "chat"] == sizes["document", "chat"] == [[2 * PIECE + 1], [1]]
    assert sizes["packed", "text"] == [[PIECE], [PIECE], [1, 1]]
    assert sizes["document", "text"] == [[PIECE], [1]]


def test_batches_are_bounded():
    found = list(batches(itertools.repeat("x" * 1000, 5000)))
    assert max(sum(len(p.text) for p in batch) for batch in found) <= (1 << 20) + 1000
    assert sum(len(batch) for batch in found) == 5000
    assert max(map(len, batches(itertools.repeat("x", 5000)))) == 1024


@given(st.lists(st.text(max_size=5), max_size=60), st.integers(1, 40))
def test_spread_keeps_every_document(texts, size):
    assert sorted(spread(texts, 3, size)) == sorted(texts)
    assert list(spread(texts, 3, size)) == list(spread(texts, 3, size))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"special": "document"}, 'data.special = "document" needs a tokenizer with EOS'),
        ({"special": "sequence"}, 'data.special = "sequence" needs a tokenizer with BOS and EOS'),
        ({"special": "document", "length": 1, "rows": "document"}, "data.length = 1 leaves no room beside EOS"),
        ({"special": "sequence", "length": 2}, "data.length = 2 leaves no room beside BOS and EOS"),
    ],
)
def test_special_tokens_that_are_not_there(settings, message):
    with pytest.raises(UserError, match=message):
        Packer(CharactersModel(special=False, unknown="error"), **SETTINGS | settings)


@pytest.mark.parametrize(("size", "found"), [(2, "uint16"), (65535, "uint16"), (65536, "uint32")])
def test_dtype_keeps_a_value_for_padding(size, found):
    assert dtype_for(size, "auto") == found
    assert dtype_for(size, "uint32") == "uint32"
    if found == "uint32":
        with pytest.raises(UserError, match=r'data\.dtype = "uint16" holds at most 65535 tokens .* 65536'):
            dtype_for(size, "uint16")


def test_a_tokenizer_that_breaks_its_promise():
    class Wrong(BytesModel):
        def encode_batch(self, texts):
            return [[258] for _ in texts]

    with pytest.raises(ValueError, match="outside 0 … 257"):
        encode(Wrong(), Form("uint16"), next(batches(["x"])))
