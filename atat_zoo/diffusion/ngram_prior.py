"""The n-gram prior: counts of neighbouring tokens in the training text, and the probabilities estimated from them.

The estimates use interpolated Witten–Bell smoothing (Witten & Bell, IEEE Transactions on Information Theory 37, 1991;
Chen & Goodman, Computer Speech & Language 13, 1999, section 2.5). With N(h) occurrences of a context h, c(h, x) of them
with the token x, T(h) different tokens seen in that context, and p' the estimate from a shorter context,

    p(x | h) = (c(h, x) + T(h) · p'(x)) / (N(h) + T(h)),     and p'(x) where h was never seen

    p(x)            (c(x) + 1) / (Σ c + V): no neighbour is visible
    p(x | l)        given the token to the left; backs off to p(x). Likewise p(x | r), given the token to the right
    p(x | l, r)     given both neighbours; backs off to the mean of p(x | l) and p(x | r)
    p(x | k, l)     given the two tokens to the left; backs off to p(x | l)

Each estimate sums to 1 over x. Counts do not cross sequence boundaries or padding.

The counts for a folder of shards are computed on first use and stored there in `neighbours.npz`. A file that is damaged
or belongs to different shards is replaced; in a read-only folder, every process computes its own counts. Shapes: V
tokens, N predictions. A neighbour that is not visible (masked, padding or outside the sequence) is any id outside
0 … V−1, such as the mask id. Arguments broadcast: x [1, V] and neighbours [N, 1] give distributions [N, V].
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.data import shard_manifest
from atat_zoo.data.sequence_packing import IDS
from atat_zoo.data.shard_manifest import ShardManifest
from atat_zoo.data.shards import arrays_of, read, save_arrays
from atat_zoo.system import machine
from atat_zoo.system.errors import UserError
from atat_zoo.system.locks import locked

FILE = "neighbours.npz"
_FORMAT = 1
# Maximum number of training tokens: they sort in a minute or two, and fit in a quarter of the memory at 64 bytes each.
_MOST, _EACH, _SHARE = 1 << 27, 64, 4
_PAIR = 12  # bytes of a key and its count in the file
LARGEST_VOCABULARY = 2**21 - 1  # V³ < 2⁶³: three ids are one key
_CHUNK = 1 << 22  # new keys are sorted once there are this many, and more than have been counted


class KeyCounts(NamedTuple):
    """Unique keys with their counts."""

    keys: NDArray[np.int64]  # ascending, [M]
    counts: NDArray[np.int64]  # at least 1, [M]

    def lookup(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the count of each key; 0 for a key that does not occur."""
        if not len(self.keys):
            return np.zeros_like(keys)
        i = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[i] == keys, self.counts[i], 0)

    def sum_by_group(self, group: NDArray[np.int64]) -> tuple[KeyCounts, KeyCounts]:
        """Return the sum of the counts and the number of keys in each group; `group` [M] is the group of each key."""
        groups, inside, types = np.unique(group, return_inverse=True, return_counts=True)
        total = np.bincount(inside, self.counts, len(groups)).astype(np.int64)
        return KeyCounts(groups, total), KeyCounts(groups, types)

    def add_keys(self, keys: list[NDArray[np.int64]]) -> KeyCounts:
        """Return the counts with more keys added; these may repeat and need not be sorted."""
        new, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_counts=True)
        both = np.concatenate([self.keys, new])
        order = np.argsort(both, kind="stable")  # linear, as both parts are sorted
        both, counts = both[order], np.concatenate([self.counts, counts])[order]
        first = np.flatnonzero(np.diff(both, prepend=-1))
        return KeyCounts(both[first], np.add.reduceat(counts, first) if len(first) else counts)


@attrs.frozen(kw_only=True, eq=False)
class NGramPrior:
    """Counts of single tokens, pairs (key a·V + b) and triples (key (a·V + b)·V + c) of adjacent tokens."""

    tokens: NDArray[np.int64]  # how often each occurs, [V]
    pairs: KeyCounts
    triples: KeyCounts
    sequences: int  # number of sequences counted

    @classmethod
    def count(cls, blocks: Iterable[NDArray[np.integer]], vocabulary_size: int) -> NGramPrior:
        """Return a prior that has counted blocks of sequences, each [rows, L]; ids ≥ `vocabulary_size` are padding.

        Counting takes at most 64 bytes per token, and the result 16 bytes per unique triple. Raises a `UserError` for a
        vocabulary of more than `LARGEST_VOCABULARY` tokens.
        """
        V = vocabulary_size
        if V > LARGEST_VOCABULARY:
            raise UserError(f"an n-gram prior supports at most {LARGEST_VOCABULARY:,} token ids, not {V:,}")
        tokens, sequences = np.zeros(V, np.int64), 0
        pairs, triples = _Counter(), _Counter()
        for block in blocks:
            sequences += len(block)
            rows = max(1, _CHUNK // max(1, block.shape[1]))
            for first in range(0, len(block), rows):
                x = block[first : first + rows].astype(np.int64)
                tokens += np.bincount(x[x < V], minlength=V)
                pairs.add(_keys(V, x[:, :-1], x[:, 1:]))
                triples.add(_keys(V, x[:, :-2], x[:, 1:-1], x[:, 2:]))
        return cls(tokens=tokens, pairs=pairs.finish(), triples=triples.finish(), sequences=sequences)

    def pairs_at(self, distance: int) -> KeyCounts:
        """Return the counts of token pairs `distance` positions apart (1 or 2), with keys a·V + b."""
        return self.pairs if distance == 1 else self._around[0]

    def prob_between(
        self, x: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return p(x | l, r) of tokens x, or p(x | l), p(x | r) or p(x) if not both are visible; all are [N]."""
        V = len(self.tokens)
        by_left, by_right = self.prob_given_neighbour(x, left), self.prob_given_neighbour(x, right, of_the_right=True)
        both = _visible(V, left, right)
        shorter = np.where(_visible(V, left), by_left, by_right)
        shorter = np.where(both, (by_left + by_right) / 2, shorter)
        a, b = np.where(both, left, 0), np.where(both, right, 0)
        return _interpolated(self.triples.lookup((a * V + x) * V + b), self._around, a * V + b, both, shorter)

    def prob_after(
        self, x: NDArray[np.int64], before: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return p(x | k, l) with k = `before` and l = `last`, p(x | l) or p(x) if they are not visible; all [N]."""
        V = len(self.tokens)
        shorter, both = self.prob_given_neighbour(x, last), _visible(V, before, last)
        context = np.where(both, before, 0) * V + np.where(both, last, 0)
        return _interpolated(self.triples.lookup(context * V + x), self._before, context, both, shorter)

    def prob_given_neighbour(
        self, x: NDArray[np.int64], neighbour: NDArray[np.int64], *, of_the_right: bool = False
    ) -> NDArray[np.float64]:
        """Return p(x | l) of tokens x, p(x | r) if `of_the_right`, or p(x) if that is not visible; all are [N]."""
        V = len(self.tokens)
        there = _visible(V, neighbour)
        h = np.where(there, neighbour, 0)
        seen = self.pairs.lookup(x * V + h if of_the_right else h * V + x)
        return _interpolated(seen, self._right if of_the_right else self._left, h, there, self.unigram_prob(x))

    def unigram_prob(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p(x) of tokens x, [N]."""
        return (self.tokens[x] + 1) / (self.tokens.sum() + len(self.tokens))

    # N(h) and T(h) of every kind of context that was seen.

    @cached_property
    def _left(self) -> tuple[KeyCounts, KeyCounts]:
        return self.pairs.sum_by_group(self.pairs.keys // len(self.tokens))

    @cached_property
    def _right(self) -> tuple[KeyCounts, KeyCounts]:
        return self.pairs.sum_by_group(self.pairs.keys % len(self.tokens))

    @cached_property
    def _before(self) -> tuple[KeyCounts, KeyCounts]:
        return self.triples.sum_by_group(self.triples.keys // len(self.tokens))

    @cached_property
    def _around(self) -> tuple[KeyCounts, KeyCounts]:
        V = len(self.tokens)
        return self.triples.sum_by_group(self.triples.keys // V**2 * V + self.triples.keys % V)


class _Counter:
    """A counter of keys that arrive in batches; sorts rarely."""

    def __init__(self) -> None:
        self.counted, self.size = KeyCounts(np.zeros(0, np.int64), np.zeros(0, np.int64)), 0
        self.waiting: list[NDArray[np.int64]] = []

    def add(self, keys: NDArray[np.int64]) -> None:
        self.waiting.append(keys)
        self.size += len(keys)
        if self.size > max(_CHUNK, len(self.counted.keys)):
            self.finish()

    def finish(self) -> KeyCounts:
        self.counted = self.counted.add_keys(self.waiting)
        self.waiting, self.size = [], 0
        return self.counted


def _keys(size: int, *columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys of the tuples of adjacent tokens that contain no padding, from columns [rows, n]."""
    keys = np.zeros_like(columns[0])
    for column in columns:
        keys = keys * size + column
    return keys[_visible(size, *columns)]


def _visible(size: int, *neighbours: NDArray[np.int64]) -> NDArray[np.bool_]:
    return reduce(operator.and_, ((ids >= 0) & (ids < size) for ids in neighbours))


def _interpolated(
    seen: NDArray[np.int64],
    of_contexts: tuple[KeyCounts, KeyCounts],
    context: NDArray[np.int64],
    visible: NDArray[np.bool_],
    shorter: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return (c(h, x) + T(h) · p'(x)) / (N(h) + T(h)), or p'(x) for a context that was not seen or is not visible."""
    total, types = (visible * counts.lookup(context) for counts in of_contexts)
    estimate = (seen + types * shorter) / np.maximum(total + types, 1)
    return np.where(total > 0, estimate, shorter)


def load_ngram_prior(folder: Path) -> NGramPrior:
    """Return the n-gram prior of a folder's training shards, from the stored counts or, if these are invalid, new ones.

    Stores new counts, waits while another process counts, and raises a `UserError` if the tokens are too many to count.
    """
    contents = shard_manifest.load(folder)
    tokens, most = contents.splits["train"].tokens, min(_MOST, machine.memory() // _SHARE // _EACH)
    if tokens > most:
        raise UserError(f"{folder} has {tokens:,} training tokens, but this machine counts n-grams in at most {most:,}")
    path = folder / FILE
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(path.with_name(f"{FILE}.lock"), lambda _: None))  # another process is counting
        with suppress(Exception):  # whatever is wrong with it
            return _kept(path, contents)
        return _count(folder, path, contents)


def _count(folder: Path, path: Path, contents: ShardManifest) -> NGramPrior:
    """Count the tokens of the training shards, and write the counts to a file unless the folder is read-only."""
    blocks = (read(folder, contents, shard) for shard in contents.splits["train"].shards)
    if contents.form == "chat":  # padding has an id that no token has
        blocks = (block & IDS for block in blocks)
    table = NGramPrior.count(blocks, contents.vocabulary_size)
    about = np.frombuffer(json.dumps(_about(contents)).encode(), np.uint8)
    arrays: dict[str, Any] = {"about": about, "tokens": table.tokens}
    for name, counted in (("pairs", table.pairs), ("triples", table.triples)):
        arrays |= {f"{name}_keys": counted.keys, f"{name}_counts": counted.counts.astype(np.uint32)}
    with suppress(UserError):
        save_arrays(path, **arrays)
    return table


def _about(contents: ShardManifest) -> dict[str, Any]:
    return {"format": _FORMAT, "shards": contents.digest, "vocabulary_size": contents.vocabulary_size}


def _kept(path: Path, contents: ShardManifest) -> NGramPrior:
    """Return the stored counts; raise an exception of any type if the file is missing, damaged or from other shards."""
    V, split = contents.vocabulary_size, contents.splits["train"]
    if path.stat().st_size > 2 * _PAIR * split.tokens + 8 * V + (1 << 16):  # bounds the memory
        raise ValueError("it is larger than any file with the counts of this many tokens")
    about, tokens = arrays_of(path, "about", "tokens")
    if json.loads(about.tobytes()) != _about(contents):
        raise ValueError("it belongs to different shards")
    if tokens.shape != (V,) or tokens.dtype != np.int64 or tokens.sum() != split.tokens or tokens.min() < 0:
        raise ValueError("its token counts do not match the shards")
    counted = {}
    for order, name in ((2, "pairs"), (3, "triples")):
        keys, counts = arrays_of(path, f"{name}_keys", f"{name}_counts")  # verifies checksums
        if keys.ndim != 1 or keys.shape != counts.shape or keys.dtype != np.int64 or counts.dtype != np.uint32:
            raise ValueError(f"its {name} have the wrong shape or dtype")
        if len(keys) and (keys[0] < 0 or keys[-1] >= V**order or np.diff(keys).min(initial=1) < 1 or counts.min() < 1):
            raise ValueError(f"its {name} are unsorted or out of range")
        counted[name] = KeyCounts(keys, counts.astype(np.int64))
    return NGramPrior(tokens=tokens, sequences=split.sequences, **counted)
