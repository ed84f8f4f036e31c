"""Two readers of the same shards, 50,257 tokens, length 1,024: our random access, webdataset's sequential reader.

The readers alternate, one epoch each. Processor time is given as a share of a training step of GPT-2 small on an H100,
as estimated by `python -m benchmarks scale`. Our reader checks the hash of every shard and can resume its order
anywhere; the library's reader checks nothing and shuffles within a buffer.
"""

from __future__ import annotations

import io
import random
import statistics
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from webdataset import DataPipeline
from webdataset.filters import shuffle
from webdataset.tariterators import group_by_keys, tar_file_expander

from atat_zoo.data.stream import TokenStream, collate, tensors, train_loader, unpack
from benchmarks.pairs import hold, interleave, note
from benchmarks.scale import assumptions, plans
from benchmarks.stream import BATCH, BATCHES, LENGTH, made

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BUFFER, BAR, TURNS = 4096, 0.02, 5


def main() -> None:
    """Print the share of a training step that each reader takes, and the ratio of the two."""
    step = BATCH * LENGTH / plans(assumptions([]))[0].speed
    with tempfile.TemporaryDirectory() as work:
        folder = made(Path(work))
        ours = iter(train_loader(TokenStream(folder, seed=0, lanes=8, batch_size=BATCH)))

        def random_access() -> None:
            consume(ours)

        def from_the_beginning() -> None:
            consume(sequential(folder))

        timed = interleave(random_access, from_the_beginning, TURNS, warmup=1, clock=time.process_time)
    bars = []
    for name, seconds in zip(("random access", "webdataset's reader"), zip(*timed, strict=True), strict=True):
        shares = [each / BATCHES / step for each in seconds]
        million = BATCHES * BATCH * LENGTH / statistics.median(seconds) / 1e6
        print(f"  {name}: {million:.1f} million tokens/s, {statistics.median(shares):.4f} of a step", flush=True)
        note(f"{name} / a step", shares)
        bars.append((f"{name} / a step", statistics.median(shares), BAR))
    print(f"  ratio, ours to the library's: {statistics.median(one / other for one, other in timed):.3f}", flush=True)
    hold(bars[:1])


def consume(batches: Iterator[Any]) -> None:
    """Read an epoch."""
    assert sum(batch["tokens"].shape[0] for batch in islice(batches, BATCHES)) == BATCH * BATCHES


def sequential(folder: Path) -> Iterator[Any]:
    """Yield an epoch's batches from the library, which reads tar files one after the other and draws from a buffer."""
    paths = sorted(folder.glob("train-*.tar"))
    random.Random(0).shuffle(paths)
    # Opened here, because `WDS_SECURE=1` forbids the library to open files.
    opened = [{"url": str(path), "stream": path.open("rb")} for path in paths]
    shuffled = shuffle(BUFFER, initial=BUFFER, rng=random.Random(0))
    stages = (tar_file_expander, group_by_keys, rows, shuffled, partial(collate, size=BATCH))
    yield from map(unpack, map(tensors, DataPipeline(lambda: opened, *stages)))


def rows(samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the sequences of each archive member."""
    for sample in samples:
        for row in np.load(io.BytesIO(sample["npy"])):
            yield {"stored": row, "index": 0}


if __name__ == "__main__":
    main()
