"""Copied n-grams and the longest copied span, against a search without any trick."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.dialogues import learned_text, texts_of
from atat_zoo.evaluation.overlap import Copies, overlap, pieces, training_text
from atat_zoo.experiment import from_table
from tests import talk


def slow(texts, training, sizes):
    """Return copied and windows by n, and the longest span, by comparing everything with everything."""
    training = tuple(training)

    def there(window):
        return any(training[i : i + len(window)] == window for i in range(len(training) - len(window) + 1))

    windows = {n: [[tuple(t[i : i + n]) for i in range(len(t) - n + 1)] for t in texts] for n in sizes}
    spans = [tuple(t[i:j]) for t in texts for i in range(len(t)) for j in range(i + 1, len(t) + 1)]
    longest = max((len(s) for s in spans if there(s)), default=0)
    copied = {n: [sum(map(there, w)) for w in of_texts] for n, of_texts in windows.items()}
    return copied, {n: [len(w) for w in of_texts] for n, of_texts in windows.items()}, longest


def fast(texts, training, sizes, block=7):
    copies = Copies([[np.array(t, np.int64)] for t in texts], sizes)
    training = np.array(training, np.int64)
    before = training[:0]
    for start in range(0, len(training), block):
        seen = np.concatenate([before, training[start : start + block]])
        copies.see(seen)
        before = seen[len(seen) - min(copies.reach, len(seen)) :]
    return copies.result()


def counts(of_texts):
    return {n: each.tolist() for n, each in of_texts.items()}


TOKENS = st.lists(st.integers(0, 2), max_size=12)


@given(texts=st.lists(TOKENS, max_size=4), training=st.lists(st.integers(0, 2), max_size=40), block=st.integers(1, 50))
def test_it_finds_what_a_search_without_tricks_finds(texts, training, block):
    sizes = (1, 2, 4, 8)
    found = fast(texts, training, sizes, block)
    copied, windows, longest = slow(texts, training, sizes)
    assert (counts(found.copied), counts(found.windows)) == (copied, windows)
    assert (found.longest, len(found.span)) == (longest, longest)
    if longest:
        assert any(tuple(t[i : i + longest]) == found.span for t in texts for i in range(len(t)))
        assert any(tuple(training[i : i + longest]) == found.span for i in range(len(training)))


def test_texts_are_cut_at_special_tokens():
    for text, special, cut in (([8, 1, 2, 9, 3, 9], [8, 9], [[1, 2], [3]]), ([1, 2], [], [[1, 2]]), ([], [8], [])):
        assert [piece.tolist() for piece in pieces(np.array(text, np.int64), special)] == cut


def shards(tmp_path, special="none", remainder="drop", rows="packed", document="file", width=1000):
    text = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(1000))
    (tmp_path / "train.txt").write_text("\n".join(text[i : i + width] for i in range(0, 1000, width)))
    for split in ("held", "test"):
        (tmp_path / f"{split}.txt").write_text("zzzz" * 20)
    files = {"train": "train.txt", "validation": "held.txt", "test": "test.txt"}
    corpus = {"use": "files", "document": document, **{split: [str(tmp_path / at)] for split, at in files.items()}}
    data = {
        "root": str(tmp_path / "data"),
        "length": 16,
        "special_tokens": special,
        "remainder": remainder,
        "packing": rows,
    }
    data |= {"lanes": 2, "sequences_per_member": 4, "sequences_per_shard": 8}
    return text, build(from_table({"name": "x", "corpus": corpus, "tokenizer": "bytes", "data": data}))


@pytest.mark.parametrize(
    ("special", "remainder"), [("none", "drop"), ("document", "pad"), ("sequence", "drop"), ("both", "pad")]
)
def test_what_lies_across_two_stored_sequences_is_found(tmp_path, special, remainder):
    text, folder = shards(tmp_path, special, remainder)
    stored = np.concatenate(list(training_text(folder)))
    assert bytes(stored[:900].astype(np.uint8)).decode() == text[:900]
    # Longer than a shard of 8 sequences, so it lies across shards, too.
    mine = np.frombuffer(text[100:400].encode(), np.uint8).astype(np.int64)
    strange = np.full(20, ord("0"))
    told = []
    texts = [[[mine]], [[strange], [mine[:5], mine[:4]]]]
    found, other = overlap(texts, folder, sizes=(4, 8), progress=lambda done, total: told.append((done, total)))
    assert (found.longest, found.share(4), found.share(8)) == (300, 1.0, 1.0)
    assert (other.longest, counts(other.copied)) == (5, {4: [0, 3], 8: [0, 0]})
    assert counts(other.windows) == {4: [17, 3], 8: [13, 0]}
    assert other.share(4) == 3 / 20
    assert told[-1][0] <= told[-1][1] == shard_manifest.load(folder).splits["train"].tokens


@pytest.mark.parametrize("special", ["none", "both"])
def test_nothing_lies_across_two_documents_of_their_own(tmp_path, special):
    _, folder = shards(tmp_path, special, rows="document", document="line", width=25)
    rows = np.concatenate(list(training_text(folder))).reshape(-1, 17)
    texts = [row[(row >= 0) & (row < 256)] for row in rows]
    (found,) = overlap([[[np.concatenate(texts[:4])]]], folder, sizes=(4,))
    assert found.longest == len(texts[0]) < 17


def test_padding_and_special_tokens_are_never_a_copy(tmp_path):
    _, folder = shards(tmp_path, "document", "pad")
    # Not even where nobody says that they are special, is padding a token.
    texts = [[pieces(np.array([257, 256, 257]), [256, 257])], [[np.full(3, 65535)]]]
    special, padding = overlap(texts, folder, sizes=(1,))
    assert (counts(special.windows), special.share(1), special.longest) == ({1: [0]}, None, 0)
    assert (counts(padding.copied), padding.longest) == ({1: [0]}, 0)


@pytest.mark.parametrize("rows", ["packed", "document"])
def test_the_training_text_of_a_chat_is_that_of_its_dialogues(tmp_path, rows):
    """Stored ids carry bits for what is answer and where a dialogue begins; no span lies across two dialogues."""
    talk.write(tmp_path / "talk.jsonl", number=30)
    corpus = {"use": "files", "train": [str(tmp_path / "talk.jsonl")]}
    data = {"root": str(tmp_path / "data"), "length": 160, "format": "chat", "packing": rows, "lanes": 1}
    experiment = from_table({"name": "x", "corpus": corpus, "tokenizer": "bytes", "data": data})
    stored = np.concatenate(list(training_text(build(experiment))))
    dialogues = [part[part >= 0] for part in np.split(stored, np.flatnonzero(stored < 0)) if (part >= 0).any()]
    written = Counter(bytes(part[part < 256].astype(np.uint8)).decode() for part in dialogues)
    said = ("".join(learned_text(text)) for text in texts_of(experiment.parts["corpus"], "train", "chat"))
    assert written == Counter(said)
    answers = [pieces(part, [256, 257])[-1] for part in dialogues[:5]]
    across = np.concatenate(dialogues[:2])
    found, joined = overlap([[[answer] for answer in answers], [[across]]], build(experiment), sizes=(4,))
    assert found.share(4) == 1.0
    assert joined.longest == max(map(len, dialogues[:2]))
