"""Dialogues in rows: what of a row is answer, and which dialogue each token belongs to.

With `data.form = "chat"` a stored token is a uint32 of 30 bits for its id and two for what it is: the highest says that
a dialogue begins, the next one that the token is of an answer. So a row keeps its width, and everything between the
build and the batch moves it like any other. Padding has all bits.

Legend: L tokens of a row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atat_zoo.data import Split
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.data.tokenizers.dialogues import Part, from_text
from atat_zoo.errors import UserError

DTYPE = "uint32"
IDS = (1 << 30) - 1  # the bits of an id
_ANSWER, _BEGINS, _PADDING = 1 << 30, 1 << 31, (1 << 32) - 1


def texts_of(corpus: Any, split: Split, form: str) -> Iterator[str]:
    """Return the documents of a split of a corpus, or its dialogues, each as a text, for `form` of `[data]`."""
    documents: Iterator[str] = corpus.dialogues(split) if form == "chat" else corpus.documents(split)
    return documents


def learned_text(text: str) -> Iterator[str]:
    """Yield the messages of a dialogue as a tokenizer learns them: with their roles, as the plain template has them."""
    return (f"{message.role}\n{message.text}" for message in from_text(text))


class DialogueRows(NamedTuple):
    """Dialogues as stored rows, and what became of those that made none."""

    rows: NDArray[np.uint32]  # [rows, L]
    dropped: int  # tokens cut away
    unanswered: int  # dialogues without an answer
    beyond: int  # dialogues whose first answer begins behind a row
    needed: int  # tokens in a row in which the first answer of each of these would end


def rows_of(tokenizer: TokenizerModel, dialogues: Sequence[str], length: int, *, packed: bool) -> DialogueRows:
    """Return dialogues, as `to_text` writes them, as stored rows.

    A dialogue has its first L tokens; one without an answer among them is left out as a whole. `packed`, several share
    a row, which ends with padding. Else each has its own, filled with EOS, which counts as answer (Nie et al.,
    arXiv:2502.09992): by that a model learns where to end in a row that is longer than its answer.

    Raises:
        UserError: when the template refuses a dialogue; the sentence says where it was read.
    """
    kept: list[NDArray[np.uint32]] = []
    dropped = unanswered = beyond = needed = 0
    for text in dialogues:
        messages = from_text(text)
        if not any(message.answers for message in messages):
            unanswered += 1
            continue
        try:
            every = [_stored(parts, tokenizer.vocabulary_size) for parts in tokenizer.chats(messages)]
        except UserError as error:
            raise UserError(f"corpus: {getattr(text, 'place', 'a dialogue')}: {error}") from None
        fitting = [stored[:length] for stored in every if (stored[:length] & _ANSWER).any()]
        dropped += sum(map(len, every)) - sum(map(len, fitting))
        kept += fitting
        if not fitting:
            beyond, needed = beyond + 1, max(needed, min(map(_first_end, every)))
    filling = _PADDING if packed else _eos(tokenizer) | _ANSWER
    together = shared([len(each) for each in kept], length) if packed else [[i] for i in range(len(kept))]
    rows = np.full((len(together), length), filling, np.uint32)
    for row, members in zip(rows, together, strict=True):
        tokens = np.concatenate([kept[i] for i in members])
        row[: len(tokens)] = tokens
    return DialogueRows(rows, dropped, unanswered, beyond, needed)


def shared(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return which dialogues share a row of a length, by their sizes: best fit, the longest first (Johnson, 1974)."""
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # of rows, ascending, with the number of the row
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        at = bisect_left(rooms, (sizes[i], -1))
        room, row = rooms.pop(at) if at < len(rooms) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        insort(rooms, (room - sizes[i], row))
    return rows


class Unpacked(NamedTuple):
    """What stored tokens mean, in arrays of their shape."""

    ids: Any  # 0 at padding
    answer: Any  # bool
    document: Any  # the number of the dialogue within its row, −1 at padding


def unpack(stored: Any) -> Unpacked:
    """Return what stored tokens mean, int64 [B, L], an array of numpy or a tensor of torch."""
    there = stored != _PADDING
    number = ((stored >> 31) * there).cumsum(1)
    return Unpacked((stored & IDS) * there, (stored & _ANSWER != 0) & there, number * there - 1)


def _stored(parts: Sequence[Part], vocabulary_size: int) -> NDArray[np.uint32]:
    ids = np.array([i for part in parts for i in part.ids], np.int64)
    if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary_size):
        raise ValueError(
            f"the tokenizer's template has ids from {ids.min()} to {ids.max()}, and V is {vocabulary_size}"
        )
    stored = ids | np.repeat([part.answer * _ANSWER for part in parts], [len(part.ids) for part in parts])
    stored[:1] |= _BEGINS
    return stored.astype(np.uint32)


def _first_end(stored: NDArray[np.uint32]) -> int:
    """Return how many tokens of a dialogue there are to the end of its first answer."""
    answer = stored & _ANSWER != 0
    first = int(answer.argmax())
    return first + int(np.append(answer[first:], False).argmin())


def _eos(tokenizer: TokenizerModel) -> int:
    if tokenizer.eos is None:
        raise UserError(
            'data.form = "chat" fills the row of a dialogue with EOS, and the tokenizer has none; name it by '
            'tokenizer.eos, or set data.rows = "packed"'
        )
    return tokenizer.eos
