"""The DataLoader of the training stream, and the held-out sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from atat_zoo.data import manifest
from atat_zoo.data.pack import pad_of
from atat_zoo.data.shards import read_shard
from atat_zoo.data.stream import TokenStream, collate
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.data import Split

    Batch = dict[str, Tensor]


class StreamLoader(DataLoader[Any]):
    """A DataLoader over a `TokenStream`, which on a GPU copies the next batch beside the computation."""

    gpu: torch.device | None = None

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Yield batches, on the GPU if the loader is for one."""
        batches = _readable(super().__iter__())
        return batches if self.gpu is None else _copied_ahead(batches, self.gpu)


def train_loader(
    folder: Path | str,
    *,
    seed: int,
    lanes: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    device: str = "cpu",
    start: int = 0,
) -> StreamLoader:
    """Return the loader of a rank's training batches.

    The batches have `tokens` int64 [B, L], `maskable` bool [B, L] and `index`
    int64 [B], B = batch_size / world_size. The loader has no length.

    Args:
        folder: the shards.
        seed: the experiment's.
        lanes: C.
        batch_size: N, over all ranks.
        rank: of this process.
        world_size: ranks; must divide `lanes` and `batch_size`.
        workers: loader processes of this rank; the order does not depend on it.
        device: where the batches will be used: `cpu`, `cuda`, `cuda:1`.
        start: the first sample, counted over all ranks.
    """
    stream = TokenStream(
        folder, seed=seed, lanes=lanes, batch_size=batch_size, rank=rank, world_size=world_size, start=start
    )
    on_gpu = device.startswith("cuda")
    # Workers do not outlive an iteration: a stream never ends, and a worker that stayed would not see where a
    # checkpoint continues.
    loader = StreamLoader(
        stream,
        batch_size=batch_size // world_size,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=on_gpu,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator(),  # else every iteration would draw from the global one
    )
    loader.gpu = torch.device(device) if on_gpu else None
    return loader


def held_out(folder: Path | str, split: Split, limit: int = 0) -> tuple[Tensor, Tensor]:
    """Return sequences of a split for an evaluation, always the same ones.

    Args:
        folder: the shards.
        split: `validation` or `test` (or `train`, to compare).
        limit: sequences at most, spread evenly over the split; 0 takes all.

    Returns:
        tokens int64 [n, L] and maskable bool [n, L].

    Raises:
        UserError: when the split has no sequence.
    """
    folder = Path(folder)
    found = manifest.verify(folder)
    record = found.split(split)
    total = record.sequences
    if not total:
        raise UserError(
            f"the {split} split in {folder} has no sequence of {found.length} tokens; "
            'hold out more text, shorten data.length, or set data.remainder = "pad"'
        )
    count = min(limit, total) if limit else total
    wanted = np.arange(count) * total // count
    parts = []
    first = 0
    for shard in record.shards:
        inside = wanted[(wanted >= first) & (wanted < first + shard.sequences)] - first
        if len(inside):
            rows = read_shard(folder / shard.name, shard.sequences, found.length, found.dtype, shard.sha256)
            parts.append(rows[inside])
        first += shard.sequences
    stored = np.concatenate(parts)
    maskable = stored != pad_of(found.dtype)
    tokens = np.where(maskable, stored, 0).astype(np.int64)
    return torch.from_numpy(tokens), torch.from_numpy(maskable)


def _readable(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Pass batches on; a user's mistake found by a worker loses the worker's traceback."""
    try:
        yield from batches
    except UserError as error:
        raise UserError(str(error).rpartition("UserError: ")[2].strip()) from None


def _copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on the GPU, each copied on a stream of its own while the one before is computed."""
    side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy() -> Batch | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            return {key: value.to(device, non_blocking=True) for key, value in batch.items()}

    ahead = copy()
    while ahead is not None:
        current = torch.cuda.current_stream(device)
        current.wait_stream(side)
        for value in ahead.values():
            # The memory was allocated on the side stream; it must not be reused before the computation is done with it.
            value.record_stream(current)
        ready, ahead = ahead, copy()
        yield ready
