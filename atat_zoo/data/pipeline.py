"""What the stream's `webdataset.DataPipeline` is made of, in this order: read, each stage, replace, collate.

Each takes the samples of the one before it: tables with `index`, the number n of the sample; `location`, of its row;
`attempt`, how many rows were refused before it; `stored`, the row [L] once it is read; and `refused`, the name of the
stage that refused it.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from webdataset import DataPipeline

from atat_zoo.data.manifest import ShardManifest
from atat_zoo.data.order import SampleOrder, key_of
from atat_zoo.data.pack import pad_of
from atat_zoo.data.shards import ShardRows
from atat_zoo.errors import UserError
from atat_zoo.registry import Context

Sample = dict[str, Any]
Stored = dict[str, NDArray[Any]]

_STAGES = 0x57A6E5  # keeps the keys of the stages apart from those of the order


class Read:
    """Reads rows where they lie in the shards, of which it has at most `at_once` of each lane open.

    By random access, as the order is one over shards that are shuffled together; the library's own reader goes through
    a tar from its beginning.
    """

    def __init__(self, contents: ShardManifest, lanes: int, at_once: int, opened: Callable[[int], ShardRows]) -> None:
        self.length, self.dtype = contents.length, np.dtype(contents.dtype)
        self.lanes, self.at_once, self.opened = lanes, at_once, opened
        self.reading: dict[int, dict[int, ShardRows]] = {}  # lane → its open shards by number, the last one opened last

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples with their rows."""
        for sample in samples:
            _, number, row = sample["location"]
            shards = self.reading.setdefault(sample["index"] % self.lanes, {})
            if number not in shards:
                if len(shards) == self.at_once:  # a shard of the group before
                    del shards[next(iter(shards))]
                shards[number] = self.opened(number)
            sample["stored"] = np.empty(self.length, self.dtype)
            shards[number].read(row, sample["stored"])
            yield sample


class Apply:
    """Applies a stage of the experiment, the one at `position` of `data.stages`."""

    def __init__(self, stage: Any, position: int, seed: int, contents: ShardManifest, context: Context) -> None:
        self.stage, self.context = stage, context
        self.key = key_of(_STAGES, seed, position)
        self.length, self.dtype, self.pad = contents.length, np.dtype(contents.dtype), pad_of(contents.dtype)

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples as the stage leaves them."""
        for sample in samples:
            stored = sample["stored"]
            tokens = stored[stored != self.pad].astype(np.int64)
            # A row of padding alone is damaged and skipped: see `TokenStream`.
            if len(tokens) and "refused" not in sample:
                found = self.stage.apply(tokens, key_of(self.key, sample["index"], sample["attempt"]), self.context)
                if found is None:
                    sample["refused"] = self.stage.name
                else:
                    sample["stored"] = self._stored(np.asarray(found))
            yield sample

    def _stored(self, tokens: NDArray[Any]) -> NDArray[Any]:
        size = self.context.vocabulary_size
        if tokens.ndim != 1 or not 1 <= len(tokens) <= self.length or tokens.dtype.kind not in "iu":
            made = f"{tokens.dtype} {list(tokens.shape)}, and a sequence is integers, [1] to [{self.length}]"
        elif tokens.min() < 0 or tokens.max() >= size:
            made = f"ids from {tokens.min()} to {tokens.max()}, and the vocabulary has {size}"
        else:
            stored = np.full(self.length, self.pad, self.dtype)
            stored[: len(tokens)] = tokens
            return stored
        raise UserError(f"data.stages: {self.stage.name!r} has made {made}; mend it, or leave it out")


class Replace:
    """Replaces what was refused by the first of `SampleOrder.others` that passes."""

    def __init__(self, order: SampleOrder, read: Read, stages: list[Apply]) -> None:
        self.order, self.again = order, (read, *stages)

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples, none of them refused."""
        for sample in samples:
            yield self._other(sample) if "refused" in sample else sample

    def _other(self, sample: Sample) -> Sample:
        refusing, n = {sample["refused"]: None}, sample["index"]
        others = enumerate(self.order.others(n), 1)
        candidates = ({"index": n, "location": location, "attempt": attempt} for attempt, location in others)
        for candidate in DataPipeline(lambda: candidates, *self.again):
            if "refused" not in candidate:
                return candidate
            refusing[candidate["refused"]] = None
        raise UserError(
            f"data.stages: {', '.join(map(repr, refusing))} refuses every sequence of the shards that are shuffled "
            f"together with that of sample {n}; let it refuse less, or raise data.shuffled_shards"
        )


class Collate:
    """Makes batches of so many samples, in numpy: stored [B, L] as in the shards, index int64 [B].

    Numpy goes through the pipe of a worker, with less work than a file of shared memory for every tensor takes.
    webdataset's own `batched` gives a batch away only when it has read a sample of the next one.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Stored]:
        """Yield the batches."""
        samples = iter(samples)
        while batch := list(islice(samples, self.size)):
            yield {
                "stored": np.stack([sample["stored"] for sample in batch]),
                "index": np.array([sample["index"] for sample in batch], np.int64),
            }
