"""How much of a text was copied from the training text: n-grams of tokens, and the longest span.

The training text is read once, shard by shard; what is looked for stays in
memory. Windows of tokens are compared by a hash, and every hit is then compared
token by token, so that the counts are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from atat_zoo.data import manifest
from atat_zoo.data.pack import pad_of
from atat_zoo.data.shards import read_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

# Odd, so that it has an inverse modulo 2^64.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_BLOCK = 1 << 20  # training tokens that are hashed at once
_BITS = 20  # of a hash, for the table that is asked first
_EXTENDED = 64  # hits that are followed to their ends before a longer window is tried


@attrs.frozen(kw_only=True)
class Overlap:
    """What of some texts stands in the training text.

    Attributes:
        copied: windows of n tokens that do, by n; a window that stands twice in the texts counts twice.
        windows: all windows of n tokens, by n.
        longest: tokens of the longest span that does.
        span: its tokens.
    """

    copied: dict[int, int]
    windows: dict[int, int]
    longest: int
    span: tuple[int, ...]

    def share(self, n: int) -> float | None:
        """Return the share of n-grams that were copied; None when no text is so long."""
        return self.copied[n] / self.windows[n] if self.windows[n] else None


class Copies:
    """Looks for copies of some texts in a stream of training tokens."""

    def __init__(self, texts: Sequence[Tokens], sizes: Sequence[int]) -> None:
        """Take the texts, int64 [L] each, and the n of the n-grams. A window never spans two texts."""
        self.mine = np.concatenate([np.zeros(0, np.int64), *texts])
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        # How many tokens of its own text follow each token, itself counted.
        self.room = np.repeat(ends, [len(text) for text in texts]) - np.arange(len(self.mine))
        self.hashed = _Prefix(self.mine)
        self.sizes = {n: self._windows(n) for n in sizes}
        self.longest, self.where = 0, 0
        self.next = self._windows(1)
        #: Tokens at the end of a block that the next one must begin with: a window may lie across.
        self.reach = int(self.room.max(initial=1)) - 1

    def see(self, block: Tokens) -> None:
        """Compare a block of training tokens, int64 [T]; it begins with the last `reach` tokens of the one before."""
        theirs = _Prefix(block)
        for windows in self.sizes.values():
            if len(block) >= windows.n:
                windows.see(block, theirs.windows(windows.n))
        while 0 < self.next.n <= len(block) and len(self.next.start):
            hits = self.next.see(block, theirs.windows(self.next.n))
            if not hits:
                return
            for position, start in hits[:_EXTENDED]:
                length = self._common(block[position:], start)
                if length > self.longest:
                    self.longest, self.where = length, start
            self.next = self._windows(self.longest + 1)

    def result(self) -> Overlap:
        """Return what was found so far."""
        return Overlap(
            copied={n: windows.copied for n, windows in self.sizes.items()},
            windows={n: len(windows.start) for n, windows in self.sizes.items()},
            longest=self.longest,
            span=tuple(self.mine[self.where : self.where + self.longest].tolist()),
        )

    def _windows(self, n: int) -> _Windows:
        return _Windows(self.mine, np.flatnonzero(self.room >= n), n, self.hashed)

    def _common(self, theirs: Tokens, start: int) -> int:
        """Return how many tokens from `start` on are those of the training text, within one text."""
        length = min(int(self.room[start]), len(theirs))
        different = np.flatnonzero(theirs[:length] != self.mine[start : start + length])
        return int(different[0]) if len(different) else length


class _Prefix:
    """Polynomial hashes modulo 2^64 of all windows of a sequence, from sums over its beginnings."""

    def __init__(self, tokens: Tokens) -> None:
        count = len(tokens)
        self.sums = np.zeros(count + 1, np.uint64)
        powers = _powers(_BASE, count)
        np.cumsum(_mix(tokens.astype(np.uint64)) * powers, out=self.sums[1:])

    def windows(self, n: int) -> Hashes:
        """Return the hashes of the windows of n tokens, one for each position where one begins."""
        if n >= len(self.sums):
            return np.zeros(0, np.uint64)
        found: Hashes = (self.sums[n:] - self.sums[:-n]) * _powers(_INVERSE, len(self.sums) - n)
        return found


class _Windows:
    """The windows of n tokens of our texts, of which those not yet found are looked for."""

    def __init__(self, mine: Tokens, start: Tokens, n: int, hashed: _Prefix) -> None:
        self.mine, self.n, self.start = mine, n, start
        every = hashed.windows(n)[start]
        self.hashes, first, group, size = np.unique(every, return_index=True, return_inverse=True, return_counts=True)
        self.first = start[first]
        # Of two windows that differ and share a hash, the second is looked for apart.
        strange = np.zeros(len(start), bool)
        for i in range(n):
            strange |= mine[start + i] != mine[self.first[group] + i]
        self.size = size - np.bincount(group[strange], minlength=len(size))
        self.rest = _Windows(mine, start[strange], n, hashed) if strange.any() else None
        self.own = 0
        self._mark()

    def see(self, block: Tokens, hashes: Hashes) -> list[tuple[int, int]]:
        """Look in a block; return each window that was found for the first time: its position there, its start here."""
        found = self.rest.see(block, hashes) if self.rest else []
        positions = np.flatnonzero(self.table[hashes >> np.uint64(64 - _BITS)])
        if not len(positions) or not len(self.hashes):
            return found
        index = np.searchsorted(self.hashes, hashes[positions]).clip(max=len(self.hashes) - 1)
        same = self.hashes[index] == hashes[positions]
        positions, index = positions[same], index[same]
        for i in range(self.n):
            same = block[positions + i] == self.mine[self.first[index] + i]
            positions, index = positions[same], index[same]
        index, once = np.unique(index, return_index=True)
        if not len(index):
            return found
        found += list(zip(positions[once].tolist(), self.first[index].tolist(), strict=True))
        self.own += int(self.size[index].sum())
        remaining = np.ones(len(self.hashes), bool)
        remaining[index] = False
        self.hashes, self.first, self.size = self.hashes[remaining], self.first[remaining], self.size[remaining]
        self._mark()
        return found

    @property
    def copied(self) -> int:
        """How many of the windows were found."""
        return self.own + (self.rest.copied if self.rest else 0)

    def _mark(self) -> None:
        """Note the first bits of the hashes looked for: a look into a small table spares most searches."""
        self.table = np.zeros(1 << _BITS, bool)
        self.table[self.hashes >> np.uint64(64 - _BITS)] = True


def _mix(x: Hashes) -> Hashes:
    """Scramble uint64: the finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _powers(base: int, count: int) -> Hashes:
    """Return base^0 … base^(count−1) modulo 2^64."""
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


def pieces(tokens: Tokens, special: Sequence[int]) -> list[Tokens]:
    """Cut a text, int64 [L], at its special tokens, which stand for no text, and leave those out."""
    cuts = np.flatnonzero(np.isin(tokens, np.array(special, np.int64)))
    parts = np.split(tokens, np.sort(np.concatenate([cuts, cuts + 1])))
    return [part for part in parts if len(part) and part[0] not in special]


def training_text(folder: Path, special: Sequence[int]) -> Iterator[Tokens]:
    """Yield the training tokens of a folder of shards in their order, int64 [T], a shard at a time.

    Sequences follow each other as in the text, so what lies across two of them is
    found too; the BOS and EOS around every sequence, where there are any, are left out.
    """
    data = manifest.verify(folder)
    for shard in data.splits["train"].shards:
        rows = read_shard(folder / shard.name, shard.sequences, data.length, data.dtype, shard.sha256)
        flat: Tokens = rows.reshape(-1).astype(np.int64)
        if data.special == "sequence":
            flat = flat[~np.isin(flat, np.array(special, np.int64))]
        # Padding is no token of any text.
        flat[flat == pad_of(data.dtype)] = -1
        yield flat


def overlap(
    groups: Sequence[Sequence[Tokens]],
    folder: Path,
    *,
    sizes: Sequence[int],
    special: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Overlap]:
    """Look for copies of several groups of texts in the training text, which is read once.

    Args:
        groups: texts as token ids, int64 [L] each.
        folder: the shards.
        sizes: the n of the n-grams.
        special: ids that stand for no text, at which texts are cut.
        progress: called with the training tokens done and to do.

    Returns:
        One result for each group.
    """
    special = list(special)
    copies = [Copies([part for text in group for part in pieces(text, special)], sizes) for group in groups]
    reach = max((c.reach for c in copies), default=0)
    total, done = manifest.load(folder).splits["train"].tokens, 0
    before: Tokens = np.zeros(0, np.int64)
    for tokens in training_text(folder, special):
        for start in range(0, len(tokens), _BLOCK):
            block = np.concatenate([before, tokens[start : start + _BLOCK]])
            for each in copies:
                each.see(block)
            before = block[len(block) - min(reach, len(block)) :]
        done += len(tokens)
        if progress:
            progress(min(done, total), total)
    return [each.result() for each in copies]
