"""The order of the training samples, a pure function of the seed, the sizes of the shards, and the numbers C and k.

There are C lanes, and each shuffles the rows of k shards together. Sample n comes from lane c = n mod C, where it is
sample number q = n // C. In its epoch e, a lane reads the shards perm(seed, e)[c::C] in groups of k, one group after
the other, where perm is `permutation`. The concatenated rows of a group's shards s_1 … s_k are read in the order
perm(seed, e, s_1, …, s_k). After its last row, a lane starts its epoch e + 1 independently of the other lanes: lanes of
unequal size drift apart, but every lane reads each of its rows once per epoch.

Permutations come from sorted 64-bit hashes: a resumed run needs the same order, and the output of numpy's generators
may change between versions.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

# SplitMix64 (Steele et al., OOPSLA 2014), as in atat_zoo.diffusion.randomness, but without torch.
_ALL = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB


def key_of(*numbers: int) -> int:
    """Return a 64-bit hash of the numbers, which depends on their order."""
    key = 0
    for number in numbers:
        x = ((key ^ (number & _ALL)) + _GOLDEN) & _ALL
        x = ((x ^ (x >> 30)) * _MUL_1) & _ALL
        x = ((x ^ (x >> 27)) * _MUL_2) & _ALL
        key = x ^ (x >> 31)
    return key


def permutation(size: int, *key: int) -> NDArray[np.int64]:
    """Return a permutation of 0 … size−1, int64 [size], that is a function of the key."""
    return np.argsort(_hashes(size, key), kind="stable")


def uniforms(size: int, *key: int) -> NDArray[np.float64]:
    """Return independent uniform numbers in [0, 1), float64 [size], that are a function of the key."""
    return (_hashes(size, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hashes(size: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    x = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key_of(*key))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MUL_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MUL_2)
    return x ^ (x >> np.uint64(31))


_Number = TypeVar("_Number", int, "Tensor")


class Place(NamedTuple, Generic[_Number]):
    """The row of sample n, and which use of the row the sample is: ints, or int64 tensors if n is a tensor."""

    row: _Number  # the number of the row, which takes the place of n in the order of rows
    stage: _Number  # how many steps have used the row before, from 0 to `times` − 1
    stratum: _Number  # the stratum of the use within the stage, from 0 to `batch_size` − 1


@attrs.frozen
class Repetition:
    """Uses each row in `times` steps, one in every `spacing` steps, at the same index of the batch.

    The stage of a use is the number of earlier uses of its row. Stages are staggered, so that all are about equally
    frequent in each batch and micro-batch: consecutive batch indices differ by about 1/φ of all stages (φ: the golden
    ratio). Therefore, the first rows of a training run start at a later stage.
    """

    batch_size: int  # B, sequences in a step
    times: int = 1
    spacing: int = 1

    @property
    def slots(self) -> int:
        """The number of rows that are in use at once."""
        return self.spacing * self.batch_size

    def slot(self, n: _Number) -> _Number:
        """Return the number of sample n's row among the rows that are in use, from 0 to `slots` − 1."""
        return n % self.slots

    def place(self, n: _Number) -> Place[_Number]:
        """Return the row of sample n, and which use of the row the sample is."""
        size, index = self.batch_size, n % self.batch_size
        # Of the steps that use the same rows, in units of 1/B of a stage.
        elapsed = n // self.slots * size + self.times * (index * golden_stride(size) % size)
        row = elapsed // (self.times * size) * self.slots + self.slot(n)
        return Place(row, elapsed // size % self.times, elapsed % size)


@functools.cache
def golden_stride(strata: int) -> int:
    """Return the smallest stride coprime to `strata` that is at least round(`strata` / φ) (φ: the golden ratio)."""
    golden = round(strata * 0.618034)
    return next(s for s in range(max(1, golden), 2 * strata + 1) if math.gcd(s, strata) == 1)


class Location(NamedTuple):
    """The location of a sample: the epoch of its lane, the number of its shard, and its row in the shard."""

    epoch: int
    shard: int
    row: int


class _Stretch(NamedTuple):
    """A group of shards in a lane, with the lane's samples first … end−1."""

    first: int
    end: int
    epoch: int
    shards: list[int]
    starts: list[int]  # the first row of each shard among the rows of the group
    rows: NDArray[np.int64]


class SampleOrder:
    """The location of each sample, given the shards' sizes in rows, C (`lanes`) and k (`together`); see the module."""

    def __init__(self, sizes: Sequence[int], *, lanes: int, seed: int, together: int = 1) -> None:
        self.sizes = np.asarray(sizes, np.int64)
        self.lanes, self.seed, self.together = lanes, seed, together
        if len(self.sizes) < lanes:
            raise UserError(
                f"data.lanes = {lanes} needs as many training shards, but there are only {len(self.sizes)}; "
                "lower data.lanes, or build shards from more text"
            )
        if not (self.sizes > 0).all():
            raise ValueError("a shard has no rows")
        self._starts: list[list[int]] = [[0] for _ in range(lanes)]  # of each epoch, by lane
        self._stretches: dict[int, list[_Stretch]] = {}  # the last two of each lane: repeated rows go back and forth

    def locate(self, n: int) -> Location:
        """Return the location of sample n ≥ 0; fastest for consecutive samples."""
        lane, q = n % self.lanes, n // self.lanes
        stretch = self._stretch(lane, q)
        row = int(stretch.rows[q - stretch.first])
        i = bisect_right(stretch.starts, row) - 1
        return Location(stretch.epoch, stretch.shards[i], row - stretch.starts[i])

    def others(self, n: int) -> Iterator[Location]:
        """Yield all other locations in the group of shards that contains sample n, each once.

        Their order depends on n, so that different samples get different replacements.
        """
        lane, q = n % self.lanes, n // self.lanes
        first, end, *_ = self._stretch(lane, q)
        size = end - first
        step = key_of(self.seed, n) % size
        while math.gcd(step, size) > 1:
            step += 1
        for k in range(1, size):
            yield self.locate((first + (q - first + k * step) % size) * self.lanes + lane)

    def shards_of(self, lane: int, epoch: int) -> NDArray[np.int64]:
        """Return the numbers of the shards that a lane reads in an epoch, in order."""
        return permutation(len(self.sizes), self.seed, epoch)[lane :: self.lanes]

    def _stretch(self, lane: int, q: int) -> _Stretch:
        known = self._stretches.get(lane, [])
        for stretch in known:
            if stretch.first <= q < stretch.end:
                return stretch
        self._stretches[lane] = [self._find(lane, q), *known[:1]]
        return self._stretches[lane][0]

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
