"""The order of the training stream: a pure function of (seed, lanes, shards shuffled together, shard sizes, n).

Sample n comes from lane c = n mod C, as the lane's sample number q = n // C. In its epoch e a lane reads the shards
perm(seed, e)[c::C] in groups of k, one after the other. The rows of a group, those of its shards s_1 … s_k
concatenated, are in the order perm(seed, e, s_1, …, s_k). After its last row a lane starts its epoch e + 1
independently of the others. Lanes of unequal size drift apart, but each reads each of its rows once per epoch.

Permutations sort 64-bit hashes and do not use numpy's generators, whose sequences may change between versions: a
resumed run must have the same order.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atat_zoo.system.errors import UserError

# SplitMix64 (Steele et al., OOPSLA 2014), as in atat_zoo.diffusion.randomness, here without torch.
_ALL = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB


def key_of(*numbers: int) -> int:
    """Return 64 bits that depend on every number and on their order."""
    key = 0
    for number in numbers:
        x = ((key ^ (number & _ALL)) + _GOLDEN) & _ALL
        x = ((x ^ (x >> 30)) * _MUL_1) & _ALL
        x = ((x ^ (x >> 27)) * _MUL_2) & _ALL
        key = x ^ (x >> 31)
    return key


def permutation(size: int, *key: int) -> NDArray[np.int64]:
    """Return a permutation of 0 … size−1 that is a function of the key, int64 [size]."""
    return np.argsort(_hashes(size, key), kind="stable")


def uniforms(size: int, *key: int) -> NDArray[np.float64]:
    """Return independent uniform numbers in [0, 1) that are a function of the key, float64 [size]."""
    return (_hashes(size, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hashes(size: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    x = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key_of(*key))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MUL_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MUL_2)
    return x ^ (x >> np.uint64(31))


class Location(NamedTuple):
    """The location of a sample: the lane's epoch, the shard's number, and the row in the shard."""

    epoch: int
    shard: int
    row: int


class _Stretch(NamedTuple):
    """A group of shards in a lane: samples first … end−1 of the lane."""

    first: int
    end: int
    epoch: int
    shards: list[int]
    starts: list[int]  # of each shard's rows among those of the group
    rows: NDArray[np.int64]


class SampleOrder:
    """The location of each sample of the stream, for the rows of each shard, C lanes, and k shards together."""

    def __init__(self, sizes: Sequence[int], *, lanes: int, seed: int, together: int = 1) -> None:
        self.sizes = np.asarray(sizes, np.int64)
        self.lanes, self.seed, self.together = lanes, seed, together
        if len(self.sizes) < lanes:
            raise UserError(
                f"data.lanes = {lanes}, but the training split has {len(self.sizes)} shards and every lane needs one; "
                "lower data.lanes, or build shards from more text"
            )
        if not (self.sizes > 0).all():
            raise ValueError("a shard without rows")
        self._starts: list[list[int]] = [[0] for _ in range(lanes)]  # of each lane's epochs, as sample numbers
        self._stretch: dict[int, _Stretch] = {}

    def locate(self, n: int) -> Location:
        """Return the location of sample n ≥ 0; fastest for consecutive samples."""
        lane, q = n % self.lanes, n // self.lanes
        stretch = self._stretch.get(lane)
        if stretch is None or not stretch.first <= q < stretch.end:
            stretch = self._stretch[lane] = self._find(lane, q)
        row = int(stretch.rows[q - stretch.first])
        i = bisect_right(stretch.starts, row) - 1
        return Location(stretch.epoch, stretch.shards[i], row - stretch.starts[i])

    def others(self, n: int) -> Iterator[Location]:
        """Yield the other locations in the shards that are shuffled together with that of sample n, each once.

        The order differs between samples, so that several samples get different replacements.
        """
        self.locate(n)
        lane, q = n % self.lanes, n // self.lanes
        first, end, *_ = self._stretch[lane]
        size = end - first
        step = key_of(self.seed, n) % size
        while math.gcd(step, size) > 1:
            step += 1
        for k in range(1, size):
            yield self.locate((first + (q - first + k * step) % size) * self.lanes + lane)

    def shards_of(self, lane: int, epoch: int) -> NDArray[np.int64]:
        """Return the shards that a lane reads in an epoch, in order."""
        return permutation(len(self.sizes), self.seed, epoch)[lane :: self.lanes]

    def _find(self, lane: int, q: int) -> _Stretch:
        starts = self._starts[lane]
        while starts[-1] <= q:
            shards = self.shards_of(lane, len(starts) - 1)
            starts.append(starts[-1] + int(self.sizes[shards].sum()))
        epoch = bisect_right(starts, q) - 1
        shards = self.shards_of(lane, epoch)
        begins = np.concatenate([[0], np.cumsum(self.sizes[shards])]) + starts[epoch]
        i = (int(np.searchsorted(begins, q, side="right")) - 1) // self.together * self.together
        group, begins = shards[i : i + self.together].tolist(), begins[i : i + self.together + 1]
        first, end = int(begins[0]), int(begins[-1])
        rows = permutation(end - first, self.seed, epoch, *group)
        return _Stretch(first, end, epoch, group, (begins[:-1] - first).tolist(), rows)
