"""Tokens per second from local shards at length 1024 with 0, 1 and 2 loader workers: at least 50 million."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from atat_zoo.data import SPLITS
from atat_zoo.data.shard_manifest import COUNTS, FILE, FORMAT, ShardManifest, SplitRecord
from atat_zoo.data.shards import write_shard
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.experiment.runs import sha256_of
from benchmarks.pairs import hold, note

LENGTH, SHARDS, ROWS, BATCH, V = 1024, 16, 4096, 64, 50_257
BAR = 50e6  # tokens per processor second of a worker; the limit applies without workers
BATCHES = SHARDS * ROWS // BATCH  # one epoch: every worker opens every shard once and checks its hash


def main() -> None:
    """Print medians of three epochs, by wall-clock time and by the processor time of the process that makes batches."""
    with tempfile.TemporaryDirectory() as work:
        folder, medians = made(Path(work)), []
        for workers in (0, 1, 2):
            rates = [epoch(folder, workers) for _ in range(3)]
            clock, processor = (statistics.median(each) / 1e6 for each in zip(*rates, strict=True))
            of = f"{processor:.1f} in a worker's processor time"
            print(f"  {workers} workers: {clock:.1f} million tokens per second, {of}", flush=True)
            note(f"50 million tokens a second / {workers} workers, by the clock", [BAR / each for each, _ in rates])
            note(f"50 million tokens a second / {workers} workers, processor time", [BAR / each for _, each in rates])
            medians.append(processor)
    hold([("50 million tokens a second / stream, 0 workers, processor time,", BAR / 1e6 / medians[0], 1.0)])


def epoch(folder: Path, workers: int) -> tuple[float, float]:
    """Return an epoch's tokens per second, and per processor second of a worker or, without workers, this process."""
    who = resource.RUSAGE_CHILDREN if workers else resource.RUSAGE_SELF
    loader = iter(train_loader(TokenStream(folder, seed=0, lanes=8, batch_size=BATCH), workers=workers))
    next(loader)  # the workers have started
    began, used = time.perf_counter(), resource.getrusage(who)
    tokens = sum(batch["tokens"].numel() for batch in islice(loader, BATCHES))
    seconds = time.perf_counter() - began
    del loader  # the workers end, so their times are known
    now = resource.getrusage(who)
    return tokens / seconds, tokens / (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)


def made(folder: Path) -> Path:
    """Write shards of random tokens, 134 MB, with their manifest."""
    rng = np.random.default_rng(0)
    shards = tuple(
        write_shard(folder / f"train-{i:06d}.tar", rng.integers(0, V, (ROWS, LENGTH), np.uint16), 256)
        for i in range(SHARDS)
    )
    (folder / "tokenizer.json").write_text("{}")
    np.save(folder / COUNTS, np.ones(V, np.int64))
    records = {split: SplitRecord(order="", shards=()) for split in SPLITS}
    records["train"] = SplitRecord(
        order="random", shards=shards, sequences=SHARDS * ROWS, tokens=SHARDS * ROWS * LENGTH
    )
    contents = ShardManifest(
        **{"format": FORMAT, "settings": "", "made_by": {}, "special": "none", "rows": "packed", "remainder": "drop"},
        **{"dtype": "uint16", "length": LENGTH, "block": 256, "lanes": 8, "vocabulary_size": V},
        **{"bos": None, "eos": None},
        **{"tokenizer": {"use": "none"}, "corpus": {"use": "none"}, "fingerprint": {}, "splits": records},
        sha256={name: sha256_of(folder / name) for name in ("tokenizer.json", COUNTS)},
    )
    (folder / FILE).write_text(contents.to_json())
    return folder


if __name__ == "__main__":
    main()
