"""The training batches of a rank: an iterable dataset that can be resumed at any sample, and its DataLoader.

The stream is a `webdataset.DataPipeline` of `Read`, an `Apply` for each transform, `replace` and `collate`. Each stage
takes the samples from the previous stage. A sample is a dict with its number n (`number`), the number of its row in the
order of rows (`index`, which is n unless rows are used repeatedly), the `location` of this row, the number of rows
refused before it (`attempt`), the row itself, [L] (`stored`), and the name of the transform that refused it
(`refused`), if any.

L: tokens in a sequence; C: lanes; R: ranks; k: shards that a lane shuffles together.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from webdataset import DataPipeline

from atat_zoo.data import shard_manifest
from atat_zoo.data.sample_order import Repetition, SampleOrder, key_of
from atat_zoo.data.sequence_packing import dialogue_tokens, pad_of
from atat_zoo.data.shard_manifest import ShardManifest
from atat_zoo.data.shards import ShardRows
from atat_zoo.registry import Context
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import require

Sample = dict[str, Any]
Stored = dict[str, NDArray[Any]]

_TRANSFORMS = 0x57A6E5  # separates the keys of the transforms from the keys of the order


class Read:
    """Reads rows from the shards by random access, with at most `at_once` open shards per lane.

    Rows are shuffled across several shards, whereas webdataset's own reader goes through each tar file sequentially.
    """

    def __init__(self, contents: ShardManifest, lanes: int, at_once: int, opened: Callable[[int], ShardRows]) -> None:
        self.length, self.dtype = contents.length, np.dtype(contents.dtype)
        self.lanes, self.at_once, self.opened = lanes, at_once, opened
        self.reading: dict[int, dict[int, ShardRows]] = {}  # lane → its open shards by number, in the order of opening

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples, each with its row added as `stored`."""
        for sample in samples:
            _, number, row = sample["location"]
            shards = self.reading.setdefault(sample["index"] % self.lanes, {})
            if number not in shards:
                if len(shards) == self.at_once:  # the oldest belongs to the previous group
                    del shards[next(iter(shards))]
                shards[number] = self.opened(number)
            sample["stored"] = np.empty(self.length, self.dtype)
            shards[number].read(row, sample["stored"])
            yield sample


class Apply:
    """Applies the transform at `position` in `data.transforms`."""

    def __init__(self, transform: Any, position: int, seed: int, contents: ShardManifest, context: Context) -> None:
        self.transform, self.context = transform, context
        self.key = key_of(_TRANSFORMS, seed, position)
        self.length, self.dtype, self.pad = contents.length, np.dtype(contents.dtype), pad_of(contents.dtype)

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples with `stored` transformed or `refused` set; raise a `UserError` for an invalid output."""
        for sample in samples:
            stored = sample["stored"]
            tokens = stored[stored != self.pad].astype(np.int64)
            # A row that is entirely padding is damaged and skipped; see `TokenStream`.
            if len(tokens) and "refused" not in sample:
                found = self.transform.apply(tokens, key_of(self.key, sample["index"], sample["attempt"]), self.context)
                if found is None:
                    sample["refused"] = self.transform.name
                else:
                    sample["stored"] = self._stored(np.asarray(found))
            yield sample

    def _stored(self, tokens: NDArray[Any]) -> NDArray[Any]:
        size = self.context.vocabulary_size
        if tokens.ndim != 1 or not 1 <= len(tokens) <= self.length or tokens.dtype.kind not in "iu":
            made = f"{tokens.dtype} {list(tokens.shape)}, but a sequence must be integers, [1] to [{self.length}]"
        elif tokens.min() < 0 or tokens.max() >= size:
            made = f"ids from {tokens.min()} to {tokens.max()}, outside 0 … {size - 1}"
        else:
            stored = np.full(self.length, self.pad, self.dtype)
            stored[: len(tokens)] = tokens
            return stored
        raise UserError(f"data.transforms: {self.transform.name!r} returned {made}; correct or remove the transform")


def replace(samples: Iterable[Sample], order: SampleOrder, again: Sequence[Any]) -> Iterator[Sample]:
    """Yield samples, replacing refused ones by others that pass the stages `again`; raise `UserError` if none does."""
    for sample in samples:
        if "refused" not in sample:
            yield sample
            continue
        refusing, n = {sample["refused"]: None}, sample["index"]
        others = enumerate(order.others(n), 1)
        same = {"number": sample["number"], "index": n}
        candidates = (same | {"location": location, "attempt": attempt} for attempt, location in others)
        for candidate in DataPipeline(partial(iter, candidates), *again):
            if "refused" not in candidate:
                yield candidate
                break
            refusing[candidate["refused"]] = None
        else:
            raise UserError(
                f"data.transforms: {', '.join(map(repr, refusing))} refuses every sequence in the shards that are "
                f"shuffled together for sample {n}; make it less strict, or raise data.shuffled_shards"
            )


def collate(samples: Iterable[Sample], size: int) -> Iterator[Stored]:
    """Yield batches of samples as numpy arrays: `stored` [B, L], in the dtype of the shards, and `index`, int64 [B].

    A worker sends numpy arrays through a pipe, which is cheaper than using a shared-memory file per tensor.
    webdataset's own `batched` yields a batch only after it has read a sample from the next batch.
    """
    samples = iter(samples)
    while batch := list(islice(samples, size)):
        yield {
            "stored": np.stack([sample["stored"] for sample in batch]),
            "index": np.array([sample["number"] for sample in batch], np.int64),
        }


Batch = dict[str, torch.Tensor]

_AHEAD = 4  # batches that a worker prefetches
_FILES = 64  # maximum number of open files besides the shards
_WORKER = 30 << 20  # minimum memory of a worker in bytes, excluding its batches


@attrs.define(slots=False, eq=False)
class TokenStream(IterableDataset["Stored | UserError"]):
    """The endless training stream of one rank, built on a `webdataset.DataPipeline`.

    Sample n of the stream, counted over all R ranks, belongs to rank n mod R, so a rank reads only its own lanes. With
    W loader workers, worker w yields the batches w, w + W, … of the rank. A DataLoader reads from its workers in turn,
    so the order is the same for every W.

    The stream yields dicts of numpy arrays, `{"stored": [B, L], "index": [B]}`, with `stored` in the dtype of the
    shards. Padding is `pad_of(dtype)`, and a damaged row that is skipped consists entirely of padding.

    Memory holds only prefetched batches. A worker opens up to `together` shards per lane, or twice that if rows repeat.
    """

    folder: Path = attrs.field(converter=Path)
    seed: int = attrs.field(kw_only=True)
    lanes: int = attrs.field(kw_only=True)  # C
    batch_size: int = attrs.field(kw_only=True)  # sequences in a batch over all ranks
    rank: int = attrs.field(default=0, kw_only=True)
    world_size: int = attrs.field(default=1, kw_only=True)  # R, which divides C and `batch_size`
    start: int = attrs.field(default=0, kw_only=True)  # the first sample, counted over all ranks
    together: int = attrs.field(default=1, kw_only=True)  # k
    skip: bool = attrs.field(default=False, kw_only=True)  # whether to skip damaged members instead of raising an error
    transforms: tuple[Any, ...] = attrs.field(default=(), kw_only=True)  # of `data.transforms`
    context: Any = attrs.field(default=None, kw_only=True)  # for the transforms
    repeats: int = attrs.field(default=1, kw_only=True)  # number of steps that use the same row
    spacing: int = attrs.field(default=1, kw_only=True)  # steps from one use of a row to the next

    def __attrs_post_init__(self) -> None:
        self.manifest = shard_manifest.verify(self.folder, splits=() if self.skip else ("train",))
        ranks = self.world_size
        for key, value in (("data.lanes", self.lanes), ("train.batch_size", self.batch_size)):
            if value % ranks:
                raise UserError(
                    f"{key} = {value} is not a multiple of {ranks}, the number of ranks; "
                    f"set it to {max(1, round(value / ranks)) * ranks}, or use a different number of ranks"
                )
        self._shards = self.manifest.splits["train"].shards
        self._order()
        # Of a lane; rows that are used repeatedly are still those of the previous group while the next one begins.
        at_once = self.together * (1 if self.repeats == 1 else 2)
        self._open_at_once = min(at_once, -(-len(self._shards) // self.lanes))
        files, most = self._open_at_once * self.lanes // ranks, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files + _FILES > most:
            raise UserError(
                f"data.shuffled_shards = {self.together} and data.lanes = {self.lanes} need {files} open shards at "
                f"once, but a process may open only {most} files; lower one of them, or raise `ulimit -n`"
            )

    def __iter__(self) -> Iterator[Stored | UserError]:
        worker = get_worker_info()
        if worker is None:
            yield from self.pipeline()
            return
        try:
            yield from self.pipeline(worker.id, worker.num_workers)
        except UserError as error:
            yield error  # in place of a batch, because torch would turn the traceback into text

    def pipeline(self, worker: int = 0, workers: int = 1) -> Any:
        """Return the `webdataset.DataPipeline` that yields the batches of one loader worker."""
        return self.samples(worker, workers).compose(partial(collate, size=self.batch_size // self.world_size))

    def samples(self, worker: int = 0, workers: int = 1) -> DataPipeline:
        """Return the pipeline that yields the samples of one loader worker."""
        order = self._order()
        read = Read(self.manifest, self.lanes, self._open_at_once, self._open)
        transforms = [
            Apply(transform, position, self.seed, self.manifest, self.context)
            for position, transform in enumerate(self.transforms)
        ]
        mended = partial(replace, order=order, again=(read, *transforms)) if transforms else None
        return DataPipeline(partial(self._in_order, order, worker, workers), read, transforms, mended)

    def _in_order(self, order: SampleOrder, worker: int, workers: int) -> Iterator[Sample]:
        """Yield the samples in the order of `SampleOrder`, without their rows."""
        per_rank = self.batch_size // self.world_size
        first = self.start + (self.rank - self.start) % self.world_size
        repetition = Repetition(self.batch_size, self.repeats, self.spacing)
        for batch in count(worker, workers):
            for k in range(batch * per_rank, (batch + 1) * per_rank):
                n = first + k * self.world_size
                row = n if self.repeats == 1 else repetition.place(n).row
                yield {"number": n, "index": row, "location": order.locate(row), "attempt": 0}

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the order's settings and the position `sample`: `num_samples` plus `start` unless `from_beginning`."""
        return {"sample": int(num_samples) + (0 if from_beginning else self.start), **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next iteration at the position in `state`; raise a `UserError` if its order differs."""
        for key, value in self._identity().items():
            if (made := state.get(key)) != value:
                raise UserError(
                    f"the checkpoint was saved with {key} = {made!r}, but this run has {value!r}, which changes the "
                    "samples or their order; resume with the original settings and shards"
                )
        self.start = int(state["sample"])

    def _identity(self) -> dict[str, Any]:
        order = {"seed": self.seed, "lanes": self.lanes, "shuffled_shards": self.together}
        return (
            order
            | {
                "shards": self.manifest.digest,
                "transforms": [unstructure(transform) for transform in self.transforms],
            }
            | ({} if self.repeats == 1 else {"repeats": self.repeats, "spacing": self.spacing})
        )

    def _order(self) -> SampleOrder:
        sizes = [shard.sequences for shard in self._shards]
        return SampleOrder(sizes, lanes=self.lanes, seed=self.seed, together=self.together)

    def _open(self, number: int) -> ShardRows:
        return ShardRows(self.folder, self.manifest, self._shards[number], skip=self.skip)


class StreamLoader(DataLoader[Any]):
    """A DataLoader for a `TokenStream`; for a GPU, it copies the next batch while the current one is used."""

    gpu: torch.device | None = None
    unpack: Callable[[Batch], Batch]

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = map(tensors, super().__iter__())
        if self.gpu is None:
            return map(self.unpack, batches)
        return copied_ahead(batches, *_side_stream(self.gpu, self.unpack))


def tensors(stored: Stored | UserError) -> Batch:
    """Return the arrays of a batch as tensors that share their memory, or raise the error sent by a worker."""
    if isinstance(stored, UserError):
        raise stored
    return {key: torch.from_numpy(value) for key, value in stored.items()}


def unpack(batch: Batch) -> Batch:
    """Return the contents of `stored` [B, L] as `tokens`, int64 [B, L], 0 at padding, and `maskable`, bool [B, L]."""
    stored = batch["stored"]
    tokens = stored.to(torch.int64)  # here instead of in a worker, which would have to send more
    maskable = tokens != torch.iinfo(stored.dtype).max
    return {"tokens": tokens.mul_(maskable), "maskable": maskable, "index": batch["index"]}


def unpack_dialogues(batch: Batch, packed: bool) -> Batch:
    """Return the contents of stored dialogues, as `unpack` does, with only the answers maskable.

    If `packed`, also return `documents`, int64 [B, L], the number of each token's dialogue within its row, −1 at
    padding.
    """
    found = dialogue_tokens(batch["stored"].to(torch.int64))
    documents = {"documents": found.document} if packed else {}
    return {"tokens": found.ids, "maskable": found.answer, "index": batch["index"], **documents}


def refuse_sizes(length: int, batch_size: int, world_size: int, workers: int) -> None:
    """Raise a `UserError` if the batches of a rank or the processes of its workers do not fit into memory."""
    tokens = batch_size // world_size * length
    # An int64 and a bool for each token; in a worker, the stored dtype.
    require(9 * tokens, f"train.batch_size = {batch_size}", "the ids of its tokens", "lower it")
    require((_WORKER + _AHEAD * 4 * tokens) * workers, f"data.workers = {workers}", "its processes", "lower it")


def train_loader(stream: TokenStream, *, workers: int = 0, device: str = "cpu") -> StreamLoader:
    """Return an endless loader of a rank's training batches for a device such as `cpu`, `cuda` or `cuda:1`.

    A batch has `tokens`, int64 [B, L], `maskable`, bool [B, L], and `index`, int64 [B], where B = batch_size /
    world_size, and, for packed dialogues, `documents`; see `unpack_dialogues`.
    """
    # Workers end with each iteration: the stream is endless, and persistent workers would ignore the position that a
    # checkpoint restores.
    loader = StreamLoader(
        stream,
        batch_size=None,  # the stream yields batches
        num_workers=workers,
        collate_fn=_as_it_is,
        prefetch_factor=_AHEAD if workers else None,
        generator=torch.Generator(),  # otherwise every iteration would draw from the global one
    )
    contents = stream.manifest
    chat = partial(unpack_dialogues, packed=contents.rows == "packed")
    loader.unpack = chat if contents.form == "chat" else unpack
    loader.gpu = torch.device(device) if device.startswith("cuda") else None
    # Composer reads it, and torch's loader does not allow setting it.
    vars(loader)["batch_size"] = stream.batch_size // stream.world_size
    return loader


def _as_it_is(batch: Any) -> Any:
    return batch


def copied_ahead(
    batches: Iterator[Batch], copy: Callable[[Batch], Batch], wait: Callable[[Iterable[torch.Tensor]], None]
) -> Iterator[Batch]:
    """Yield copies of batches; copying the next batch starts before a batch is yielded and continues during its use.

    `copy` starts copying a batch, and `wait` makes the computation wait until its tensors have been copied.
    """
    copies = map(copy, batches)
    ahead = next(copies, None)
    while ahead is not None:
        wait(ahead.values())
        ready, ahead = ahead, next(copies, None)
        yield ready


def _side_stream(
    device: torch.device, unpack: Callable[[Batch], Batch]
) -> tuple[Callable[[Batch], Batch], Callable[[Iterable[torch.Tensor]], None]]:
    """Return `copy` and `wait` for a GPU, which copy on a separate CUDA stream."""
    side: torch.cuda.Stream = torch.cuda.Stream(device)

    def copy(batch: Batch) -> Batch:
        with torch.cuda.stream(side):
            # Only a copy from pinned memory overlaps with the computation.
            return unpack({key: value.pin_memory().to(device, non_blocking=True) for key, value in batch.items()})

    def wait(copies: Iterable[torch.Tensor]) -> None:
        current = torch.cuda.current_stream(device)
        current.wait_stream(side)
        for value in copies:
            # The memory was allocated on the side stream and must not be reused before the computation is finished.
            value.record_stream(current)

    return copy, wait
