"""Dialogues in rows: answers and documents are what was stored, and no dialogue is divided."""

import json

import attrs
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from in_memory import Memory, experiment_of, hashes

from atat_zoo.cli import atat
from atat_zoo.data import manifest
from atat_zoo.data.build import build
from atat_zoo.data.dialogues import Message, Part, to_text
from atat_zoo.data.pack import Packer, Piece, dialogue_tokens, rows_of, shared
from atat_zoo.data.sequences import corpus_sequences, held_out, held_out_sequences
from atat_zoo.data.slices import Slice, encode_slice, join
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.data.tokenizers import BPETokenizer
from atat_zoo.data.tokenizers.library import BytesModel
from atat_zoo.errors import UserError
from atat_zoo.modeling.backbones.neighbours import count_table
from atat_zoo.registry import component

BYTES = BytesModel()
words = st.text(st.sampled_from("ab é"), min_size=1, max_size=9)
dialogues = st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), words), min_size=1, max_size=4)
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
        ValueError, match=f"template has ids from {min(outside, 0)} to {max(outside, 257)}, and V is 258"
    ):
        rows_of(Outside(), [to_text([Message("assistant", "a")])], 8, packed=True)


LONG = [Message("user", "word " * 20), Message("assistant", "yes"), Message("user", "x"), Message("assistant", "no")]
SILENT = [Message("system", "Be brief."), Message("user", "x")]


def test_dialogues_that_do_not_fit_are_counted_with_the_length_that_fits_them(tmp_path):
    needed = len(flat(LONG[:2])[0])
    experiment = spoken(tmp_path, "document", length=48)
    none = Spoken(train=tuple(to_text([Message("user", f"{i}"), *LONG]) for i in range(10, 40)))
    experiment.parts["corpus"] = none
    within = rf"30 of 30 dialogues have no answer within data\.length = 48 tokens, .* set data\.length = {needed + 9}$"
    with pytest.raises(UserError, match=within):
        build(experiment)
    with pytest.raises(UserError, match=r"'spoken': 30 of 30 dialogues have no answer within"):
        corpus_sequences(none, BYTES, "train", length=48, special="none", rows="document", form="chat", limit=0)
    some = Spoken(train=(*said(60), to_text(LONG), *(to_text([Message("tool", str(i)), *SILENT]) for i in range(3))))
    experiment.parts["corpus"] = some
    folder = build(experiment)
    train = manifest.load(folder).splits["train"]
    assert (train.documents, train.unanswered, train.beyond, train.needed) == (64, 3, 1, needed)
    assert train.sequences == 60
    info = CliRunner().invoke(atat, ["data", "info", str(folder)]).output
    assert (
        "train: 3 of 64 dialogues have no answer; 1 of 64 dialogues have no answer within data.length = 48 tok" in info
    )
    assert info.count("they are left out") == 1
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
    path = folder / manifest.FILE
    table = json.loads(path.read_text())
    for split in table["splits"].values():
        del split["unanswered"], split["beyond"], split["needed"]
    path.write_text(json.dumps(table))
    assert manifest.load(folder).left_out() == []


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


CHAT = {"form": "chat", "length": 96, "lanes": 2}


def spoken(root, rows, **data):
    return experiment_of(root, corpus=Spoken(train=said(60)), **CHAT | {"rows": rows} | data)


@pytest.mark.parametrize("rows", ["packed", "document"])
def test_a_build_counts_what_it_stores_and_slices_are_joined_to_the_same(tmp_path, rows):
    experiment = spoken(tmp_path, rows)
    folder = build(experiment)
    contents = manifest.verify(folder, full=True)
    assert (contents.form, contents.rows, contents.dtype) == ("chat", rows, "uint32")
    train = contents.splits["train"]
    assert train.documents == 60
    assert train.sequences * 96 == train.tokens + train.padded
    assert train.sequences < 60 if rows == "packed" else train.sequences == 60
    assert (train.padded == 0) == (rows == "document")
    made, counts = hashes(folder), manifest.load_counts(folder)
    assert counts.sum() == train.tokens
    assert counts[[256, 257]].sum() == train.special_tokens
    table = count_table(folder)
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
    with pytest.raises(UserError, match=r'several dialogues in a row.*data.rows = "document"'):
        held_out(packed, "validation")
    found = held_out_sequences(packed, "validation")
    assert found.documents.max() > 0
    tokens, maskable = held_out(apart, "validation")
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
