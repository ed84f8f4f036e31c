"""Group documents into batches, and pack their tokens into sequences, in bounded memory.

With `data.format = "chat"`, a stored token is a uint32 with 30 bits for its id and two flags: the highest bit marks
the start of a dialogue, and the next bit marks a token of an answer. Padding has all bits set.

L: tokens in a sequence, including special tokens.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.data import is_framed
from atat_zoo.data.dialogues import Part, from_text
from atat_zoo.data.sample_order import permutation
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.system.errors import UserError

PIECE = 1 << 20  # maximum number of characters in a piece
BATCH = 1024  # maximum number of pieces encoded at once
SHUFFLED = 1 << 27  # characters of documents shuffled at once, in memory

DIALOGUE_DTYPE = "uint32"  # of a stored token of a dialogue
IDS = (1 << 30) - 1  # the bits of the id in such a token
_ANSWER, _BEGINS, _PADDING = 1 << 30, 1 << 31, (1 << 32) - 1
_WORD = re.compile(r"\S+")
_CUT = re.compile(r"(?<=\S) (?=\S)")


class Piece(NamedTuple):
    """A part of a document, encoded on its own."""

    text: str
    joined: bool  # whether it may begin inside a word
    last: bool  # whether the document ends with this piece

    @property
    def words(self) -> int:
        """The number of words that begin in the piece."""
        return len(self.text.split()) - (self.joined and not self.text[0].isspace())


class Form(NamedTuple):
    """How documents are stored: their tokens either follow one another, or each document has its own row."""

    dtype: str  # of a stored token
    first: tuple[int, ...] = ()  # tokens before each document
    last: tuple[int, ...] = ()  # tokens after each document
    length: int = 0  # L of a row, which is truncated and padded; 0 if documents follow each other
    chat: str = ""  # for dialogues, `packed` or `document`, as in `data.packing`

    @property
    def room(self) -> int:
        """The maximum number of document tokens in a row."""
        return self.length - len(self.first) - len(self.last)


class Encoded(NamedTuple):
    """The tokens of a batch, and the statistics of its text."""

    tokens: NDArray[Any]  # in the stored dtype, one document after the other
    documents: int
    characters: int
    bytes: int
    words: int
    dropped: int = 0  # tokens that were truncated
    unanswered: int = 0  # for dialogues, see `Totals`
    beyond: int = 0
    needed: int = 0


def pieces(document: str, size: int = PIECE) -> Iterator[Piece]:
    """Yield the pieces of a long document, each with at most `size` characters.

    Where possible, a document is cut before a single space between two words. Byte-level BPE always ends a token there,
    so the pieces have the same tokens as the document; for bytes and characters, this holds for any cut. Other
    pretrained tokenizers may produce a different token at a cut, about one per megabyte.
    """
    start, joined = 0, False  # whether the previous cut was inside a word
    while True:
        end = min(start + size, len(document))
        if end < len(document):
            window = max(start + 1, end - 4096)
            cuts = [match.start() for match in _CUT.finditer(document, window, end + 2)]
            end = cuts[-1] if cuts else end
        text = document[start:end]
        yield Piece(text, joined, end == len(document))
        if end == len(document):
            return
        start, joined = end, not text[-1].isspace()


def learnable(document: str, most: int = 1 << 10) -> Iterator[str]:
    """Yield a document in pieces, cut so that no word has more than `most` characters.

    The time to train a tokenizer is quadratic in the length of a word, and longer words would not become tokens.
    """
    if len(document) <= PIECE and len(max(document.split(), key=len, default="")) <= most:
        yield document
        return
    for piece in pieces(document):
        start = 0
        for word in _WORD.finditer(piece.text):
            for end in range(word.start() + most, word.end(), most):
                yield piece.text[start:end]
                start = end
        yield piece.text[start:]


def batches(documents: Iterable[str], rows: str = "packed", form: str = "text") -> Iterator[list[Piece]]:
    """Yield the pieces of documents in batches, each of which ends once it has 2²⁰ characters or 1,024 pieces.

    `rows` is `data.packing`: with `"document"`, only the first piece of a document is used. `form` is `data.format`:
    with `"chat"`, a dialogue is a single piece.
    """
    batch, characters = list[Piece](), 0
    for document in documents:
        whole = [Piece(document, joined=False, last=True)]
        for piece in whole if form == "chat" else pieces(document if rows == "packed" else document[:PIECE]):
            batch.append(piece)
            characters += len(piece.text)
            if characters >= PIECE or len(batch) >= BATCH:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def spread(documents: Iterable[str], seed: int, size: int = SHUFFLED) -> Iterator[str]:
    """Yield documents shuffled within groups of about `size` characters, so that shards mix periods and authors."""
    block: list[str] = []
    characters = number = 0
    for document in documents:
        block.append(document)
        characters += len(document)
        if characters >= size:
            yield from (block[i] for i in permutation(len(block), seed, number))
            block, characters, number = [], 0, number + 1
    yield from (block[i] for i in permutation(len(block), seed, number))


def encode(tokenizer: TokenizerModel, form: Form, batch: Sequence[Piece]) -> Encoded:
    """Return the tokens and statistics of a batch; if each document has its own row, one without tokens has none."""
    if form.chat:
        return _encode_dialogues(tokenizer, form, [piece.text for piece in batch])
    ids: list[int] = []
    sizes: list[int] = []  # of the rows
    dropped = 0
    for piece, of_piece in zip(batch, tokenizer.encode_batch([piece.text for piece in batch]), strict=True):
        if not form.length:
            ids += of_piece
            ids += form.last if piece.last else ()
        elif of_piece:
            kept = [*form.first, *of_piece[: form.room], *form.last]
            ids += kept
            sizes.append(len(kept))
            dropped += len(of_piece[form.room :])
    tokens, size = np.asarray(ids, np.int64), tokenizer.vocabulary_size
    if len(ids) and (tokens.min() < 0 or tokens.max() >= size):  # such ids would be stored as different tokens
        raise ValueError(f"the tokenizer returned ids from {tokens.min()} to {tokens.max()}, outside 0 … {size - 1}")
    stored = tokens.astype(form.dtype)
    if form.length:
        rows = np.full((len(sizes), form.length), pad_of(form.dtype), form.dtype)
        rows[np.arange(form.length) < np.array(sizes, np.int64)[:, None]] = stored
        stored = rows.reshape(-1)
    return Encoded(
        stored,
        documents=sum(piece.last for piece in batch),
        characters=sum(len(piece.text) for piece in batch),
        bytes=sum(len(piece.text.encode()) for piece in batch),
        words=sum(piece.words for piece in batch),
        dropped=dropped,
    )


def _encode_dialogues(tokenizer: TokenizerModel, form: Form, batch: Sequence[str]) -> Encoded:
    rows, *left = rows_of(tokenizer, batch, form.length, packed=form.chat == "packed")
    said = [message.content for text in batch for message in from_text(text)]
    return Encoded(
        rows.reshape(-1),
        len(batch),
        sum(map(len, said)),
        sum(len(text.encode()) for text in said),
        sum(len(text.split()) for text in said),
        *left,
    )


@attrs.define(kw_only=True)
class Totals:
    """Counts of a split: its text, its stored tokens, and what was left out."""

    documents: int = 0
    characters: int = 0
    bytes: int = 0  # in UTF-8
    words: int = 0  # separated by white space
    tokens: int = 0  # stored tokens, including special tokens but not padding
    special_tokens: int = 0  # BOS and EOS among them
    dropped: int = 0  # tokens not stored, because they were truncated or left over at the end
    padded: int = 0  # positions filled with padding
    sequences: int = 0  # stored; sequences · L = tokens + padded
    unanswered: int = 0  # dialogues left out because they have no answer
    beyond: int = 0  # dialogues left out because no answer begins within L tokens
    needed: int = 0  # the smallest L with which the first answer of each of these would fit

    def left_out(self, length: int) -> str:
        """Return a sentence about the dialogues without an answer within L = `length` tokens, or an empty string."""
        said = [f"{self.unanswered:,} of {self.documents:,} dialogues have no answer"] if self.unanswered else []
        if self.beyond:
            within = (
                f"{self.beyond:,} of {self.documents:,} dialogues have no answer within data.length = {length} tokens"
            )
            said.append(f"{within}; each of them has one within {self.needed:,} tokens")
        return "; ".join(said)


class Packer:
    """Packs the tokens of documents into sequences of L = `length` tokens, at most `limit` of them if it is set.

    `special` is `"none"`, `"document"` (EOS after every document), `"sequence"` (BOS, L−2 tokens of running text, EOS)
    or, as in MDLM, `"both"`; a tokenizer that lacks these tokens raises a `UserError`. `remainder` says whether the
    last tokens are padded to L tokens (`"pad"`) or dropped (`"drop"`). Padding is the largest value of the dtype.

    `rows` is `"packed"` for running text, or `"document"`: as in MDLM for LM1B, each document has one row, with its
    first tokens between the special tokens, followed by padding. As in MDLM, the network attends to padding. Here
    padding is never masked, so the network sees the length of the document; MDLM also masks padding, but excludes it
    from the loss. `form` is `"text"` or, for dialogues, which are never split across rows, `"chat"`.
    """

    def __init__(
        self,
        tokenizer: TokenizerModel,
        *,
        length: int,
        special: str,
        remainder: str,
        dtype: str,
        rows: str = "packed",
        form: str = "text",
        limit: int | None = None,
    ) -> None:
        self.length, self.remainder, self.limit = length, remainder, limit
        self.dtype, self.pad, self.tokenizer = np.dtype(dtype), pad_of(dtype), tokenizer
        framed, ends = is_framed(special), (tokenizer.bos, tokenizer.eos)
        needed = "BOS and EOS" if framed else "EOS"
        first: tuple[Any, ...] = ends[:1] if framed else ()
        last: tuple[Any, ...] = ends[1:] if special != "none" else ()
        if form == "chat":  # dialogues are encoded as rows
            self.framed, self.form = False, Form(dtype, length=length, chat=rows)
        elif rows == "document":  # documents are encoded with their special tokens
            self.framed, self.form = False, Form(dtype, first, last, length)
        else:
            self.framed, self.form = framed, Form(dtype, last=() if special == "sequence" else last)
        self.body = length - 2 if self.framed else length
        if (self.form.room if self.form.length else self.body) < 1:
            raise UserError(
                f"data.length = {length} leaves no room for text besides {needed}; raise it, or change "
                f'data.special_tokens = "{special}"'
            )
        if (special != "none" and tokenizer.eos is None) or (framed and tokenizer.bos is None):
            raise UserError(
                f'data.special_tokens = "{special}" needs a tokenizer with {needed}; '
                f"set tokenizer.special_tokens = true "
                f'(characters) or tokenizer.bos and tokenizer.eos (pretrained), or data.special_tokens = "none"'
            )
        self.totals = Totals()
        self.counts: NDArray[np.int64] = np.zeros(tokenizer.vocabulary_size, np.int64)
        self._waiting: list[NDArray[Any]] = []
        self._tokens = 0

    @property
    def ready(self) -> int:
        """The number of full sequences available, up to the limit."""
        rows = self._tokens // self.body
        return rows if self.limit is None else min(rows, self.limit - self.totals.sequences)

    @property
    def waiting(self) -> int:
        """The memory needed to write the waiting tokens, in bytes: 3× their size, as `take` and writing copy them."""
        return 3 * self._tokens * self.dtype.itemsize

    @property
    def full(self) -> bool:
        """Whether the limit of sequences is reached, so that more text has no effect."""
        return self.limit is not None and self.totals.sequences + self.ready >= self.limit

    def encode(self, batch: Sequence[Piece]) -> Encoded:
        """Return the tokens of a batch, for `add`."""
        return encode(self.tokenizer, self.form, batch)

    def add(self, batch: Encoded) -> None:
        """Append the tokens of a batch, and add the statistics of its text to the totals."""
        for name in ("documents", "characters", "bytes", "words", "dropped", "unanswered", "beyond"):
            setattr(self.totals, name, getattr(self.totals, name) + getattr(batch, name))
        self.totals.needed = max(self.totals.needed, batch.needed)
        self._push(batch.tokens)

    def take(self, rows: int) -> NDArray[Any]:
        """Return the next `rows` sequences [rows, L], and count them; `rows` must not exceed `ready`."""
        flat = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        size = rows * self.body
        self._waiting, self._tokens = [], 0
        self._push(flat[size:])
        return self._framed(flat[:size].reshape(rows, self.body))

    def finish(self) -> NDArray[Any]:
        """Return the remaining tokens as one padded sequence [1, L], or [0, L] if none remain or they are dropped."""
        left = np.concatenate([*self._waiting, np.empty(0, self.dtype)])
        self._waiting, self._tokens = [], 0
        if self.remainder == "drop" or not len(left) or self.full:
            self.totals.dropped += int((left != self.pad).sum())
            return np.empty((0, self.length), self.dtype)
        row = self._framed(left[None])
        return np.pad(row, ((0, 0), (0, self.length - row.shape[1])), constant_values=self.pad)

    def state(self) -> tuple[dict[str, int], NDArray[Any], NDArray[np.int64]]:
        """Return the arguments for `restore`: the totals, the waiting tokens, and the token counts."""
        return attrs.asdict(self.totals), np.concatenate([*self._waiting, np.empty(0, self.dtype)]), self.counts

    def restore(self, totals: dict[str, int], waiting: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Continue from the `state` of a packer; raise a `ValueError` if its vocabulary size differs."""
        if counts.shape != self.counts.shape or waiting.ndim != 1:
            raise ValueError("the state belongs to different settings")
        self.totals, self.counts = Totals(**totals), counts.copy()
        self._waiting, self._tokens = [], 0
        self._push(waiting.astype(self.dtype))

    def _push(self, tokens: NDArray[Any]) -> None:
        if len(tokens):
            self._waiting.append(tokens)
            self._tokens += len(tokens)

    def _ids(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the ids [N] in stored rows, without padding."""
        stored = rows[rows != self.pad]
        return stored & IDS if self.form.chat else stored

    def _framed(self, body: NDArray[Any]) -> NDArray[Any]:
        """Add BOS and EOS as `special` requires, and count the stored tokens."""
        rows, totals = body, self.totals
        ends = (self.tokenizer.bos, self.tokenizer.eos) if self.form.chat else self.form.first + self.form.last
        totals.special_tokens += int(np.isin(self._ids(body), [i for i in ends if i is not None]).sum())
        if self.framed:
            totals.special_tokens += 2 * len(body)
            edge = np.ones((len(body), 1), self.dtype)
            rows = np.concatenate([edge * self.tokenizer.bos, body, edge * self.tokenizer.eos], 1).astype(self.dtype)
        tokens = self._ids(rows)
        self.counts += np.bincount(tokens, minlength=len(self.counts))
        totals.sequences += len(rows)
        totals.tokens += len(tokens)
        totals.padded += len(rows) * self.length - len(tokens)
        return rows


class DialogueRows(NamedTuple):
    """Dialogues as stored rows, and the numbers of dropped tokens and dialogues."""

    rows: NDArray[np.uint32]  # [rows, L]
    dropped: int  # tokens that were truncated
    unanswered: int  # dialogues without an answer
    beyond: int  # dialogues whose first answer begins after the end of a row
    needed: int  # the smallest L with which the first answer of each of these would fit


def rows_of(tokenizer: TokenizerModel, dialogues: Sequence[str], length: int, *, packed: bool) -> DialogueRows:
    """Return stored rows of L = `length` tokens for dialogues, given as strings from `to_text`.

    A dialogue is truncated to L tokens, and dropped if these contain no answer token. With `packed`, several dialogues
    share a row, which ends with padding. Otherwise, each dialogue has its own row, which is filled with EOS. These EOS
    tokens are part of the answer (Nie et al., arXiv:2502.09992), so that a model learns where its answer ends.

    Raises:
        UserError: if the template rejects a dialogue, whose place the message names, or if rows are to be filled with
            EOS and the tokenizer has none.
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
    """Return, for each row of `length` tokens, the indices of its dialogues, by best-fit decreasing (Johnson, 1974)."""
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # free space and number of each row, in ascending order
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        at = bisect_left(rooms, (sizes[i], -1))
        room, row = rooms.pop(at) if at < len(rooms) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        insort(rooms, (room - sizes[i], row))
    return rows


class DialogueTokens(NamedTuple):
    """The ids, answer flags and dialogue numbers in stored tokens, as arrays or tensors of the same shape."""

    ids: Any  # 0 at padding
    answer: Any  # bool
    document: Any  # the number of the dialogue within its row, −1 at padding


def dialogue_tokens(stored: Any) -> DialogueTokens:
    """Return the `DialogueTokens` in `stored`, a numpy array or torch tensor, int64 [B, L]."""
    there = stored != _PADDING
    number = ((stored >> 31) * there).cumsum(1)
    return DialogueTokens((stored & IDS) * there, (stored & _ANSWER != 0) & there, number * there - 1)


def _stored(parts: Sequence[Part], vocabulary_size: int) -> NDArray[np.uint32]:
    ids = np.array([i for part in parts for i in part.ids], np.int64)
    if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary_size):
        raise ValueError(
            f"the chat template produces ids from {ids.min()} to {ids.max()}, outside 0 … {vocabulary_size - 1}"
        )
    stored = ids | np.repeat([part.answer * _ANSWER for part in parts], [len(part.ids) for part in parts])
    stored[:1] |= _BEGINS
    return stored.astype(np.uint32)


def _first_end(stored: NDArray[np.uint32]) -> int:
    """Return the number of tokens in a dialogue up to the end of its first answer."""
    answer = stored & _ANSWER != 0
    first = int(answer.argmax())
    return first + int(np.append(answer[first:], False).argmin())


def _eos(tokenizer: TokenizerModel) -> int:
    if tokenizer.eos is None:
        raise UserError(
            'data.format = "chat" fills rows with EOS, but the tokenizer has none; set tokenizer.eos, or set '
            'data.packing = "packed"'
        )
    return tokenizer.eos


def pad_of(dtype: str) -> int:
    """Return the stored value for padding, which is the largest of the dtype."""
    return int(np.iinfo(np.dtype(dtype)).max)


def dtype_for(vocabulary_size: int, wanted: str, form: str = "text") -> str:
    """Return `uint32` for dialogues, else `wanted` (`auto`: what fits); raise a `UserError` if ids do not fit in it."""
    if form == "chat":
        return DIALOGUE_DTYPE
    fits = vocabulary_size <= pad_of("uint16")
    if wanted == "uint16" and not fits:
        raise UserError(
            f'data.dtype = "uint16" holds at most {pad_of("uint16")} tokens, but the vocabulary has {vocabulary_size}; '
            'set data.dtype = "auto" or "uint32"'
        )
    if wanted == "auto":
        return "uint16" if fits else "uint32"
    return wanted
