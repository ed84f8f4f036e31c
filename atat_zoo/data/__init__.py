"""Data: documents → tokens → packed sequences → shards → a stream in a fixed order.

    build     experiment → a folder of shards with a manifest, atomically; resumable
    pack      documents → batches, and their tokens → sequences [rows, L]
    encoding  batches → tokens, in one process or in many
    slices    the same by processes that do not know of each other, and their join
    estimate  disk space and time of a build, before it starts
    shards    sequences ↔ WebDataset tar files, a split at a time
    manifest  the contents of a folder of shards, and the check that they are unchanged
    order     which row is sample n: a pure function of (seed, lanes, n)
    stream    the training samples of a rank, as an iterable dataset, and its DataLoader
    sequences the sequences of a split or of a corpus, in memory
    neighbours a count table: probabilities of a token from those beside it
    counting  that table of a folder of shards, kept beside them

Only `stream` and `sequences` import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Split = Literal["train", "validation", "test"]
Progress = Callable[[str, int, int | None], None]  # a stage, its completed amount, and its total if known
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def is_framed(special: str) -> bool:
    """Return whether every sequence stands between BOS and EOS, for `special` of `[data]`."""
    return special in ("sequence", "both")
