"""The training samples of a rank, as an iterable dataset that continues at any sample, and its DataLoader.

L: tokens in a sequence; C: lanes; R: ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from atat_zoo.data import manifest
from atat_zoo.data.order import SampleOrder
from atat_zoo.data.pack import pad_of
from atat_zoo.data.shards import read
from atat_zoo.errors import UserError
from atat_zoo.machine import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Sample = dict[str, Any]
    Batch = dict[str, torch.Tensor]

_AHEAD = 4  # batches that a worker has ready
_WORKER = 30 << 20  # bytes that a worker takes at least, besides what it reads


class TokenStream(IterableDataset["Sample"]):
    """The endless training stream of one rank.

    Sample n of the stream, n counted over all ranks, belongs to rank n mod R, so a rank reads only its own lanes.
    With W loader workers, worker w makes the batches w, w + W, … of the rank; a DataLoader reads its workers in turn,
    so the order is the same for every W.

    Yields `{"tokens": int64 [L], "maskable": bool [L], "index": n}` in numpy; padding is token 0 and not maskable.

    Memory: one shard per lane of the rank, in every worker; every worker reads all of the rank's shards.

    Args:
        folder: the shards.
        seed: the experiment's seed.
        lanes: C.
        batch_size: N, sequences in a batch over all ranks.
        rank: the rank of this process.
        world_size: R; must divide C and N.
        start: the first sample, counted over all ranks.

    Raises:
        UserError: when R does not divide C and N, or shards are missing, damaged, or fewer than the lanes.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        seed: int,
        lanes: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = manifest.verify(self.folder)
        for key, value in (("data.lanes", lanes), ("train.batch_size", batch_size)):
            if value % world_size:
                raise UserError(
                    f"{key} = {value} is not a multiple of the {world_size} ranks; "
                    f"set it to {max(1, round(value / world_size)) * world_size}, or start another number of ranks"
                )
        self.seed, self.lanes, self.batch_size = seed, lanes, batch_size
        self.rank, self.world_size, self.start = rank, world_size, start
        self._shards = self.manifest.splits["train"].shards
        self._order()

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        worker_id, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        per_rank = self.batch_size // self.world_size
        order = self._order()
        reading: dict[int, tuple[int, NDArray[Any]]] = {}  # lane → number and rows of its shard
        pad = pad_of(self.manifest.dtype)
        first = self.start + (self.rank - self.start) % self.world_size
        batch = worker_id
        while True:
            for k in range(batch * per_rank, (batch + 1) * per_rank):
                n = first + k * self.world_size
                lane, location = n % self.lanes, order.locate(n)
                if reading.get(lane, (-1,))[0] != location.shard:
                    reading[lane] = location.shard, self._read(location.shard)
                stored = reading[lane][1][location.row]
                maskable = stored != pad
                tokens = stored.astype(np.int64)
                tokens[~maskable] = 0
                yield {"tokens": tokens, "maskable": maskable, "index": n}
            batch += workers

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the position of the stream, in Composer's interface.

        Args:
            num_samples: samples trained on, over all ranks.
            from_beginning: whether they are counted from the first of the stream or from `start`.
        """
        return {"sample": int(num_samples) + (0 if from_beginning else self.start), **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the next sample; takes effect when the stream is iterated next.

        Raises:
            UserError: when the state is of a stream in another order.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise UserError(
                    f"the checkpoint was made with {key} = {state.get(key)!r} and this run has {value!r}: the samples "
                    "would come in another order; continue with the settings and shards of the run"
                )
        self.start = int(state["sample"])

    def _identity(self) -> dict[str, Any]:
        """Return the values that determine the order."""
        return {"seed": self.seed, "lanes": self.lanes, "shards": self.manifest.digest}

    def _order(self) -> SampleOrder:
        return SampleOrder([shard.sequences for shard in self._shards], lanes=self.lanes, seed=self.seed)

    def _read(self, number: int) -> NDArray[Any]:
        return read(self.folder, self.manifest, self._shards[number])


def collate(samples: list[Sample]) -> Batch:
    """Stack samples: tokens int64 [B, L], maskable bool [B, L], index int64 [B]."""
    return {
        "tokens": torch.from_numpy(np.stack([sample["tokens"] for sample in samples])),
        "maskable": torch.from_numpy(np.stack([sample["maskable"] for sample in samples])),
        "index": torch.tensor([sample["index"] for sample in samples], dtype=torch.int64),
    }


class StreamLoader(DataLoader[Any]):
    """A DataLoader over a `TokenStream`; for a GPU it copies the next batch during the computation."""

    gpu: torch.device | None = None

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = _readable(super().__iter__())
        return batches if self.gpu is None else _copied_ahead(batches, self.gpu)


def refuse_sizes(length: int, batch_size: int, world_size: int, workers: int) -> None:
    """Raise a `UserError` if this machine cannot hold the batches of a rank and of its workers; see `TokenStream`."""
    batch = batch_size // world_size * length * 9  # an int64 and a bool for each token
    require(batch, f"train.batch_size = {batch_size}", "the ids of its tokens", "lower it")
    require((_WORKER + _AHEAD * batch) * workers, f"data.workers = {workers}", "its processes", "lower it")


def train_loader(stream: TokenStream, *, workers: int = 0, device: str = "cpu") -> StreamLoader:
    """Return the loader of a rank's training batches.

    The batches have `tokens` int64 [B, L], `maskable` bool [B, L] and `index` int64 [B], B = batch_size / world_size.
    The loader has no length.

    Args:
        stream: the samples of the rank.
        workers: loader processes of this rank; the order does not depend on their number.
        device: the device that uses the batches: `cpu`, `cuda`, `cuda:1`.
    """
    on_gpu = device.startswith("cuda")
    # Workers end with each iteration: the stream is endless, and persistent workers would miss the position that a
    # checkpoint restores.
    loader = StreamLoader(
        stream,
        batch_size=stream.batch_size // stream.world_size,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=on_gpu,
        prefetch_factor=_AHEAD if workers else None,
        generator=torch.Generator(),  # else every iteration would draw from the global one
    )
    loader.gpu = torch.device(device) if on_gpu else None
    return loader


def _readable(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches; strip the worker's traceback from a worker's `UserError`."""
    try:
        yield from batches
    except UserError as error:
        raise UserError(str(error).rpartition("UserError: ")[2].strip()) from None


def _copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on the GPU, each copied on a separate CUDA stream during the computation on the previous one."""
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
            # Allocated on the side stream: it must not be reused before the computation has finished with it.
            value.record_stream(current)
        ready, ahead = ahead, copy()
        yield ready
