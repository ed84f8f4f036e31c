"""Packing, against the concatenation written out; and dialogues in rows, none of which is divided."""

import itertools
import json
import tempfile

import attrs
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import Memory, experiment_of, hashes

from atat_zoo.cli import atat
from atat_zoo.data import shard_manifest
from atat_zoo.data.build import _SPREAD_SEED, build
from atat_zoo.data.dialogues import Message, Part, to_text
from atat_zoo.data.sequence_packing import (
    PIECE,
    Form,
    Packer,
    Piece,
    batches,
    dialogue_tokens,
    dtype_for,
    encode,
    pieces,
    rows_of,
    shared,
    spread,
)
from atat_zoo.data.sequences import alone, corpus_sequences, held_out_sequences
from atat_zoo.data.shards import read
from atat_zoo.data.slices import Slice, encode_slice, join
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.data.tokenizers.components import BPETokenizer
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel, CharactersModel
from atat_zoo.diffusion.ngram_prior import load_ngram_prior
from atat_zoo.registry import component
from atat_zoo.system.errors import UserError

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


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.text("ab\n", min_size=1, max_size=40), min_size=12, max_size=24),
    st.sampled_from(["document", "both"]),
    st.integers(1, 3),
    st.integers(1, 8),
)
def test_the_pieces_of_a_long_document_keep_their_order_in_the_shards(texts, special, lanes, in_a_shard):
    """The rows of the shards in order, without BOS and EOS of a row, are the documents; each EOS ends a document."""
    data = {"length": 6, "special_tokens": special, "remainder": "pad", "lanes": lanes}
    data |= {"sequences_per_shard": in_a_shard, "sequences_per_member": 2}
    with tempfile.TemporaryDirectory() as root:
        folder = build(experiment_of(root, corpus=Memory(train=tuple(texts), validation=tuple(texts)), **data))
        record = shard_manifest.load(folder)
        for split, documents in (("train", [*spread(texts, _SPREAD_SEED)]), ("validation", texts)):
            rows = np.concatenate([read(folder, record, shard) for shard in record.splits[split].shards]).astype(int)
            text = [row[row < 65535][slice(1, -1) if special == "both" else slice(None)] for row in rows]
            assert len(record.splits[split].shards) >= len(rows) / in_a_shard
            running = "".join("$" if token == 257 else chr(token) for row in text for token in row)
            assert running.split("$")[:-1] == documents


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"special": "document"}, 'data.special_tokens = "document" needs a tokenizer with EOS'),
        ({"special": "sequence"}, 'data.special_tokens = "sequence" needs a tokenizer with BOS and EOS'),
        (
            {"special": "document", "length": 1, "rows": "document"},
            "data.length = 1 leaves no room for text besides EOS",
        ),
        ({"special": "sequence", "length": 2}, "data.length = 2 leaves no room for text besides BOS and EOS"),
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
        with pytest.raises(UserError, match=r'data\.dtype = "uint16" holds at most 65535 tokens, .* 65536'):
            dtype_for(size, "uint16")


def test_a_tokenizer_that_breaks_its_promise():
    class Wrong(BytesModel):
        def encode_batch(self, texts):
            return [[258] for _ in texts]

    with pytest.raises(ValueError, match="outside 0 … 257"):
        encode(Wrong(), Form("uint16"), next(batches(["x"])))


BYTES = BytesModel()
spoken_words = st.text(st.sampled_from("ab é"), min_size=1, max_size=9)
dialogues = st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), spoken_words), min_size=1, max_size=4)
sizes = st.lists(st.integers(1, 20), max_size=30)


def flat(said):
    """The tokens of a dialogue, and which of them are answer."""
    parts = BYTES.chat(said)
    return [i for p in parts for i in p.ids], [p.answer for p in parts for _ in p.ids]


def answers(said):
    return [role == "assistant" and bool(content.strip()) for role, content in said]


@given(st.lists(dialogues, max_size=8), st.integers(20, 60), st.booleans())
def test_what_is_stored_is_what_was_said(many, length, packed):
    rows, dropped, unanswered, beyond, needed = rows_of(BYTES, [*map(to_text, many)], length, packed=packed)
    ids, answer, document = dialogue_tokens(rows.astype(np.int64))
    wanted = [flat(said) for said in many if any(answers(said))]
    assert unanswered == len(many) - len(wanted)
    outside = [a.index(True) + [*a[a.index(True) :], False].index(False) for _, a in wanted if not any(a[:length])]
    assert (beyond, needed) == (len(outside), max(outside, default=0))
    kept = sorted((i[:length], a[:length]) for i, a in wanted if any(a[:length]))
    found = []
    for row in range(len(rows)):
        for number in range(document[row].max() + 1):
            own = document[row] == number
            assert (np.diff(np.flatnonzero(own)) == 1).all()
            found.append((ids[row, own].tolist(), answer[row, own].tolist()))
    assert dropped == sum(len(i) for i, _ in wanted) - sum(len(i) for i, _ in kept)
    if packed:
        assert sorted(found) == kept
        assert not answer[document < 0].any()
    else:
        filled = ((i + [257] * (length - len(i)), a + [True] * (length - len(a))) for i, a in kept)
        assert sorted(found) == sorted(filled)
    same = dialogue_tokens(torch.from_numpy(rows.astype(np.int64)))
    for one, other in zip(same, (ids, answer, document), strict=True):
        assert np.array_equal(one.numpy(), other)


@pytest.mark.parametrize("outside", [-1, 258])
def test_a_template_with_other_ids_is_refused(outside):
    class Outside(BytesModel):
        def chat(self, messages, *, answering=False):
            return [Part([0, 257, outside], True)]

    with pytest.raises(
        ValueError, match=f"template produces ids from {min(outside, 0)} to {max(outside, 257)}, outside 0 … 257"
    ):
        rows_of(Outside(), [to_text([Message("assistant", "a")])], 8, packed=True)


LONG = [Message("user", "word " * 20), Message("assistant", "yes"), Message("user", "x"), Message("assistant", "no")]
SILENT = [Message("system", "Be brief."), Message("user", "x")]


def test_dialogues_that_do_not_fit_are_counted_with_the_length_that_fits_them(tmp_path):
    needed = len(flat(LONG[:2])[0])
    experiment = spoken(tmp_path, "document", length=48)
    none = Spoken(train=tuple(to_text([Message("user", f"{i}"), *LONG]) for i in range(10, 40)))
    experiment.parts["corpus"] = none
    within = rf"30 of 30 dialogues have no answer within data\.length = 48 tokens; .* set data\.length = {needed + 9}$"
    with pytest.raises(UserError, match=within):
        build(experiment)
    with pytest.raises(UserError, match=r"'spoken': 30 of 30 dialogues have no answer within"):
        corpus_sequences(none, BYTES, "train", length=48, special="none", rows="document", form="chat", limit=0)
    some = Spoken(train=(*said(60), to_text(LONG), *(to_text([Message("tool", str(i)), *SILENT]) for i in range(3))))
    experiment.parts["corpus"] = some
    folder = build(experiment)
    train = shard_manifest.load(folder).splits["train"]
    assert (train.documents, train.unanswered, train.beyond, train.needed) == (64, 3, 1, needed)
    assert train.sequences == 60
    info = CliRunner().invoke(atat, ["data", "info", str(folder)]).output
    assert (
        "train: 3 of 64 dialogues have no answer; 1 of 64 dialogues have no answer within data.length = 48 tok" in info
    )
    assert info.count("they are dropped") == 1
    made = hashes(folder)
    experiment.data = attrs.evolve(experiment.data, root=str(tmp_path / "other"))
    for part in (1, 2):
        encode_slice(experiment, Slice(part, 2))
    assert hashes(join(experiment)) == made
    only = Spoken(train=tuple(to_text([Message("system", str(i))]) for i in range(40)))
    experiment.parts["corpus"] = only
    with pytest.raises(UserError, match="40 of 40 dialogues have no answer; use dialogues with answers"):
        build(experiment)


def test_the_length_that_fits_is_that_of_the_longest_and_of_its_shortest_text():
    class Apart(BytesModel):
        def chats(self, messages):
            return [self.chat(messages), self.chat(messages[1:])]

    longer = [*LONG[:1], *LONG]
    needed = [len(flat(LONG[:2])[0]), len(flat(longer[:3])[0])]
    for many in ([LONG, longer], [longer, LONG]):
        found = rows_of(BYTES, [*map(to_text, many)], 48, packed=True)
        assert (found.beyond, found.needed) == (2, max(needed))
    assert rows_of(Apart(), [to_text(longer)], 48, packed=True).needed == min(needed)
    packer = Packer(BYTES, length=48, special="none", remainder="drop", dtype="uint32", rows="packed", form="chat")
    for many in ([LONG], [longer], [LONG]):
        packer.add(packer.encode([Piece(to_text(each), False, True) for each in many]))
    assert (packer.totals.beyond, packer.totals.needed) == (3, max(needed))


def test_manifests_of_earlier_versions_are_read(tmp_path):
    folder = build(spoken(tmp_path, "packed"))
    path = folder / shard_manifest.FILE
    table = json.loads(path.read_text())
    for split in table["splits"].values():
        del split["unanswered"], split["beyond"], split["needed"]
    path.write_text(json.dumps(table))
    assert shard_manifest.load(folder).left_out() == []


@pytest.mark.parametrize("text", [to_text(LONG, "a.jsonl, line 3"), to_text(LONG), str(to_text(LONG))])
def test_a_template_that_refuses_a_dialogue_says_where_it_was_read(text):
    class Refusing(BytesModel):
        def chats(self, messages):
            raise UserError("no system role")

    place = "a.jsonl, line 3" if getattr(text, "place", "").endswith("3") else "a dialogue"
    with pytest.raises(UserError, match=f"^corpus: {place}: no system role$"):
        rows_of(Refusing(), [to_text(SILENT), text], 8, packed=True)


@given(sizes)
def test_rows_are_shared_and_nearly_full(many):
    rows = shared(many, 20)
    assert sorted(i for row in rows for i in row) == list(range(len(many)))
    filled = [sum(many[i] for i in row) for row in rows]
    assert all(total <= 20 for total in filled)
    # Of best fit: no two rows would fit into one.
    assert len(rows) < 2 or sum(sorted(filled)[:2]) > 20


def said(number):
    """Some dialogues, all different."""
    made = []
    for i in range(number):
        one = [Message("user", f"What is {i}?"), Message("assistant", f"It is {i}" + "!" * (i % 4))]
        made.append(to_text(one * (1 + i % 3 // 2)))
    return tuple(made)


@component
class Spoken(Memory):
    """Dialogues in memory."""

    name = "spoken"
    holds_dialogues = True
    validation: tuple[str, ...] = said(12)
    test: tuple[str, ...] = said(3)
    dialogues = Memory.documents

    def documents(self, split):
        raise AssertionError("dialogues are asked for")


CHAT = {"format": "chat", "length": 96, "lanes": 2}


def spoken(root, rows, **data):
    return experiment_of(root, corpus=Spoken(train=said(60)), **CHAT | {"packing": rows} | data)


@pytest.mark.parametrize("rows", ["packed", "document"])
def test_a_build_counts_what_it_stores_and_slices_are_joined_to_the_same(tmp_path, rows):
    experiment = spoken(tmp_path, rows)
    folder = build(experiment)
    contents = shard_manifest.verify(folder, full=True)
    assert (contents.form, contents.rows, contents.dtype) == ("chat", rows, "uint32")
    train = contents.splits["train"]
    assert train.documents == 60
    assert train.sequences * 96 == train.tokens + train.padded
    assert train.sequences < 60 if rows == "packed" else train.sequences == 60
    assert (train.padded == 0) == (rows == "document")
    made, counts = hashes(folder), shard_manifest.load_counts(folder)
    assert counts.sum() == train.tokens
    assert counts[[256, 257]].sum() == train.special_tokens
    table = load_ngram_prior(folder)
    assert np.array_equal(table.tokens, counts)
    experiment.data = attrs.evolve(experiment.data, root=str(tmp_path / "other"))
    for part in (1, 2):
        encode_slice(experiment, Slice(part, 2))
    assert hashes(join(experiment)) == made


@pytest.mark.parametrize("rows", ["packed", "document"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_continues_with_exactly_the_next_dialogues(tmp_path, rows, workers):
    folder = build(spoken(tmp_path, rows))

    def batches(stream, number):
        loader = iter(train_loader(stream, workers=workers))
        return [next(loader) for _ in range(number)]

    def stream():
        return TokenStream(folder, seed=3, lanes=2, batch_size=4)

    whole = batches(stream(), 8)
    again = stream()
    again.load_state_dict(stream().state_dict(20, True))
    for one, other in zip(batches(again, 3), whole[5:], strict=True):
        assert one.keys() == other.keys()
        assert ("documents" in one) == (rows == "packed")
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert [batch["index"].tolist() for batch in whole] == [[4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(8)]
    # Answers and nothing else are maskable.
    for batch in whole:
        for row, (tokens, maskable) in enumerate(zip(batch["tokens"], batch["maskable"], strict=True)):
            answers = BYTES.decode(tokens[maskable].tolist())
            assert "What" not in answers
            assert "assistant" not in answers
            assert answers.startswith("It is")
            if rows == "packed":
                assert (batch["documents"][row] >= -1).all()


def test_held_out_rows_of_several_dialogues_are_asked_for_by_name(tmp_path):
    packed, apart = (build(spoken(tmp_path, rows)) for rows in ("packed", "document"))
    with pytest.raises(UserError, match=r'sequences of several dialogues.*train with data.packing = "document"'):
        alone(held_out_sequences(packed, "validation"))
    found = held_out_sequences(packed, "validation")
    assert found.documents.max() > 0
    tokens, maskable, _ = held_out_sequences(apart, "validation")
    assert held_out_sequences(apart, "validation").documents is None
    form = {"length": 96, "special": "none", "form": "chat", "limit": 0}
    for rows, (ids, answer) in (("packed", found[:2]), ("document", (tokens, maskable))):
        same = corpus_sequences(Spoken(train=said(60)), BYTES, "validation", rows=rows, **form)
        assert torch.equal(same.tokens, ids)
        assert torch.equal(same.maskable, answer)


def test_the_tokenizer_learns_what_is_said(tmp_path):
    folder = build(
        experiment_of(tmp_path, corpus=Spoken(train=said(60)), tokenizer=BPETokenizer(vocabulary_size=280), **CHAT)
    )
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert any("What" in token or "hat" in token for token in vocabulary)
    assert not any('"' in token and len(token) > 1 for token in vocabulary)


# Corpora
