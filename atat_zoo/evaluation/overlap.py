"""The overlap of texts with the training text: copied token n-grams and the longest copied span.

The training text is read once, shard by shard, while the texts stay in memory. The counts are exact; nothing is hashed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.data import is_framed, shard_manifest
from atat_zoo.data.sequence_packing import dialogue_tokens, pad_of
from atat_zoo.data.shards import read
from atat_zoo.evaluation import Progress

Tokens = NDArray[np.int64]

_BLOCK = 1 << 20  # number of training tokens that are compared at once
_NONE = -1  # separates two texts, and replaces padding in the training text


@attrs.frozen(kw_only=True)
class Overlap:
    """The number of n-grams of some texts that occur in the training text, and the longest span that does."""

    copied: Mapping[int, Tokens]  # by n, the number of copied windows in each text, including repetitions
    windows: Mapping[int, Tokens]  # by n, the number of all windows of n tokens in each text
    span: tuple[int, ...]  # tokens of the longest copied span

    @property
    def longest(self) -> int:
        """Number of tokens of the longest copied span."""
        return len(self.span)

    def share(self, n: int) -> float | None:
        """Return the fraction of n-grams that are copied, or None if no text has n tokens."""
        windows = int(self.windows[n].sum())
        return int(self.copied[n].sum()) / windows if windows else None


class Copies:
    """A search of training tokens, block by block, for n-grams and spans of texts, whose pieces are int64 [L] each."""

    def __init__(self, texts: Sequence[Sequence[Tokens]], sizes: Sequence[int]) -> None:
        self.texts = texts
        every = [piece for text in texts for piece in text]
        mine = np.concatenate([np.array([_NONE]), *(np.append(piece, _NONE) for piece in every)])
        self.most = max((len(piece) for piece in every), default=0)
        #: Number of tokens at the end of a block that the next block must repeat, because a window may span both.
        self.reach = max(0, self.most - 1)
        self.own = _Windows(mine, known=[])
        self.sizes = sizes
        self.grams = {n: np.unique(self.own.keys(n)) for n in sizes if n <= self.most}
        self.copied = {n: np.zeros(len(keys), bool) for n, keys in self.grams.items()}
        self.span: Tokens = mine[:0]

    def see(self, block: Tokens) -> None:
        """Search a block of training tokens, int64 [T], which starts with the previous block's last `reach` tokens."""
        theirs, most = _Windows(block, self.own.known), min(len(block), self.most)
        for n, keys in self.grams.items():
            if n <= most:
                self.copied[n][_positions(keys, theirs.keys(n))] = True

        def copies(n: int) -> Tokens:
            return np.flatnonzero(_positions(np.unique(self.own.keys(n)), theirs.keys(n)))

        longer = range(len(self.span) + 1, most + 1)
        if longer and len(copies(longer[0])):
            # Any part of a copied span is copied too.
            longest = longer[bisect_right(longer, False, key=lambda n: not len(copies(n))) - 1]
            start = copies(longest)[0]
            self.span = block[start : start + longest].copy()

    def result(self) -> Overlap:
        """Return the copies found so far."""
        copied, windows = {}, {}
        for n in self.sizes:
            of_piece, start = [], 1  # a piece begins after a _NONE
            if n in self.grams:
                self.copied[n][0] = False  # the first key is _NONE
                there = self.copied[n][_positions(self.grams[n], self.own.keys(n))]
            for text in self.texts:
                of_piece.append(0)
                for piece in text:
                    if len(piece) >= n:
                        of_piece[-1] += int(there[start : start + len(piece) - n + 1].sum())
                    start += len(piece) + 1
            copied[n] = np.array(of_piece, np.int64)
            windows[n] = np.array([sum(max(0, len(piece) - n + 1) for piece in text) for text in self.texts], np.int64)
        return Overlap(copied=copied, windows=windows, span=tuple(self.span.tolist()))


class _Windows:
    """The windows of a token sequence, with a unique key for each window that occurs in the texts.

    A window of 2^j tokens gets a number for the pair of its halves' numbers (Karp, Miller & Rosenberg, STOC 1972); 0
    stands for every window that does not occur in the texts. The key of a window of n tokens is the pair of numbers of
    its first and last 2^j tokens, for the largest 2^j ≤ n.

    `known` contains the sorted keys of the texts' windows for each j. The texts add keys, and training blocks look up
    keys.
    """

    def __init__(self, tokens: Tokens, known: list[Tokens]) -> None:
        self.tokens, self.known = tokens, known
        self.numbers: list[Tokens] = []

    def keys(self, n: int) -> Tokens:
        """Return the key of each window of n tokens, int64 [T − n + 1], or _NONE if no text contains the window."""
        j = n.bit_length() - 1
        while len(self.numbers) <= j:
            level = len(self.numbers)
            keys = _pairs(self.numbers[-1], 1 << (level - 1)) if level else self.tokens
            if level == len(self.known):
                self.known.append(np.unique(keys))
            self.numbers.append(_positions(self.known[level], keys))
        return _pairs(self.numbers[j], n - (1 << j))


def _pairs(numbers: Tokens, distance: int) -> Tokens:
    """Return a key for each pair of numbers at this distance, with _NONE if either number is 0."""
    first, second = numbers[: len(numbers) - distance], numbers[distance:]
    return np.where((first > 0) & (second > 0), (first << 32) | second, _NONE)


def _positions(known: Tokens, keys: Tokens) -> Tokens:
    """Return the index of each key in the sorted keys `known`, which begin with _NONE, or 0 if the key is absent."""
    position = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return np.where(known[position] == keys, position, 0)


def pieces(tokens: Tokens, special: Sequence[int]) -> list[Tokens]:
    """Return the non-empty pieces of a text between its special tokens, int64 [L] each."""
    cuts = np.flatnonzero(np.isin(tokens, np.array(special, np.int64)))
    parts = np.split(tokens, np.sort(np.concatenate([cuts, cuts + 1])))
    return [part for part in parts if len(part) and part[0] not in special]


def training_text(folder: Path) -> Iterator[Tokens]:
    """Yield the training tokens of a folder of shards, int64 [T], shard by shard, with consecutive sequences joined.

    An unused id separates dialogues, and also documents if each document has its own row.
    """
    data = shard_manifest.verify(folder, splits=["train"])
    for shard in data.splits["train"].shards:
        rows: Tokens = read(folder, data, shard).astype(np.int64)
        padding = rows == pad_of(data.dtype)
        if data.form == "chat":
            rows, _, of_dialogue = dialogue_tokens(rows)
            begins = np.diff(of_dialogue, prepend=-1) > 0
        rows[padding] = _NONE
        if data.form == "chat":
            flat = np.insert(rows.reshape(-1), np.flatnonzero(begins), _NONE)
        elif data.rows == "document":
            flat = np.pad(rows, ((0, 0), (0, 1)), constant_values=_NONE).reshape(-1)
        elif is_framed(data.special):
            inside = np.ones_like(padding)
            inside[:, 0] = inside[np.arange(len(rows)), -1 - padding.sum(1)] = False
            flat = rows[inside]
        else:
            flat = rows.reshape(-1)
        yield flat


def overlap(
    groups: Sequence[Sequence[Sequence[Tokens]]], folder: Path, *, sizes: Sequence[int], progress: Progress = None
) -> list[Overlap]:
    """Return the overlap of each group of texts with the training text in a folder of shards, which is read once.

    Each text is a list of pieces, int64 [L]; `sizes` lists the n of the n-grams.
    """
    copies = [Copies(group, sizes) for group in groups]
    reach = max((c.reach for c in copies), default=0)
    total, done = shard_manifest.load(folder).splits["train"].tokens, 0
    before: Tokens = np.zeros(0, np.int64)
    for tokens in training_text(folder):
        for start in range(0, len(tokens), _BLOCK):
            block = np.concatenate([before, tokens[start : start + _BLOCK]])
            for each in copies:
                each.see(block)
            before = block[len(block) - min(reach, len(block)) :]
        done += len(tokens)
        if progress:
            progress(min(done, total), total)
    return [each.result() for each in copies]
