"""Slices of a build, encoded by independent processes on one or more machines.

    <root>/<name>.slices/3-of-8.lock               locked while a process encodes the slice
    <root>/<name>.slices/3-of-8/tokenizer.json     the tokenizer that encoded the slice
    <root>/<name>.slices/3-of-8/train-000010.npz   tokens and statistics of block 10
    <root>/<name>.slices/3-of-8/done.json          settings hash, blocks per split, SHA-256 of each block; written last

The batches of a split are grouped into blocks, and block b belongs to slice b mod n + 1 of n. The batches have the same
order as in a build by a single process, so `join` writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from atat_zoo.data import SPLITS, Progress, Split
from atat_zoo.data.build import Build, Encoder, Throughput, build, unless_built
from atat_zoo.data.sequence_packing import Encoded, Piece
from atat_zoo.data.shard_manifest import TOKENIZER
from atat_zoo.data.shards import arrays_of, save_arrays
from atat_zoo.experiment.runs import sha256_of
from atat_zoo.experiment.schema import Experiment
from atat_zoo.system.atomic_files import discard, write_bytes, write_text
from atat_zoo.system.errors import UserError

BLOCK = 4  # batches, of about a megabyte each
_DONE = "done.json"
_NAME = re.compile(r"(\d+)(?:/|-of-)(\d+)")


def encode_slice(
    experiment: Experiment,
    part: Slice,
    *,
    progress: Progress | None = None,
    processes: int = 1,
    throughput: Throughput | None = None,
) -> Path:
    """Encode a slice of an experiment's text and return its folder, or the folder of existing shards.

    The whole text is read, even if `data.sequences` is set, but only this slice is encoded. A finished slice is not
    encoded again. Processes that encode different slices may run at the same time, on any machine with access to the
    text and the folder; the first process trains the tokenizer. See `build` for the arguments and the errors.
    """
    tokenizer = experiment.parts["tokenizer"]

    def encode_in(wanted: Build) -> Path:
        root = wanted.beside("slices")
        root.mkdir(exist_ok=True)
        if others := {of for _, of in _begun(root)} - {part.of}:
            raise UserError(
                f"--slice {part.number}/{part.of}: {root} was begun with {others.pop()} slices; use this "
                "number of slices, or delete the folder"
            )
        own = root / str(part)
        with wanted.alone(root / f"{part}.lock"):
            wanted.unfinished(own)
            if not (own / TOKENIZER).is_file():
                with wanted.alone(wanted.beside("lock")):
                    if wanted.is_built():  # while we waited, without slices
                        return wanted.finished()
                    work = wanted.unfinished(wanted.beside("partial"))
                    wanted.tokenizer_in(work)
                    write_bytes(own / TOKENIZER, (work / TOKENIZER).read_bytes())
            if not (own / _DONE).is_file():
                encoder = Encoder(processes, throughput)
                with encoder.of(tokenizer, own, wanted.packer(tokenizer.load(own), "train")):
                    blocks = {split: part.write(own, split, wanted, encoder) for split in SPLITS}
                wanted.check_unchanged(own)
                hashes = {path.name: sha256_of(path) for path in sorted(own.glob("*.npz"))}
                write_text(own / _DONE, json.dumps({"of": [wanted.source.settings, blocks], "sha256": hashes}))
        if wanted.is_built():  # by another process, without slices
            discard(wanted.beside("slices"))
            return wanted.finished()
        return own

    return unless_built(experiment, progress, encode_in)


def join(experiment: Experiment, *, progress: Progress | None = None, throughput: Throughput | None = None) -> Path:
    """Build an experiment's shards from its slices, delete the slices, and return the shards' folder; see `build`."""
    return build(experiment, progress=progress, throughput=throughput, slices=Slices)


class Slice(NamedTuple):
    """The part of the text that one process encodes: slice `number`, counted from 1, of `of` slices."""

    number: int
    of: int

    @classmethod
    def named(cls, text: str) -> Self:
        """Return the slice named by a string such as `3/8`; raise a `UserError` for an invalid string."""
        name = _NAME.fullmatch(text)
        if name is None or not 1 <= int(name[1]) <= int(name[2]) <= 10_000:
            raise UserError(f"--slice {text}: expected the slice number and the number of slices, such as 3/8")
        return cls(int(name[1]), int(name[2]))

    def __str__(self) -> str:
        return f"{self.number}-of-{self.of}"

    def write(self, folder: Path, split: Split, wanted: Build, encoder: Encoder) -> int:
        """Write the missing blocks of this slice, and return the number of blocks in the split, over all slices."""
        blocks, characters, batches = 0, 0, wanted.batches(split)
        waiting: deque[tuple[int, int]] = deque()  # numbers and sizes of the blocks that are being encoded

        def own() -> Iterator[Sequence[Piece]]:
            nonlocal blocks, characters
            while block := list(islice(batches, BLOCK)):
                if blocks % self.of == self.number - 1 and not (folder / _file(split, blocks)).is_file():
                    waiting.append((blocks, len(block)))
                    yield from block
                characters += sum(len(piece.text) for batch in block for piece in batch)
                blocks += 1
                wanted.report(split, characters, None)

        batches_encoded = encoder.encoded(own())
        for first in batches_encoded:
            number, size = waiting.popleft()
            block = [first, *islice(batches_encoded, size - 1)]
            counts = np.array([(len(batch.tokens), *batch[1:]) for batch in block], np.int64)
            tokens = np.concatenate([batch.tokens for batch in block])
            save_arrays(folder / _file(split, number), counts=counts, tokens=tokens)
        return blocks


class Slices:
    """The text of a build's slices; raises a `UserError` if one is missing, unfinished, damaged or of another build."""

    def __init__(self, root: Path, settings: str) -> None:
        begun = _begun(root)
        if not begun:
            raise UserError(f"--join: no slices found in {root}; first encode each slice, for example with --slice 1/8")
        self.root, self._of = root, begun[0].of
        every = [Slice(number, self._of) for number in range(1, self._of + 1)]
        missing = [part.number for part in every if not (root / str(part) / _DONE).is_file()]
        if missing:
            numbers = f"{', '.join(map(str, missing))} of {self._of}"
            said = f"slice {numbers} is" if len(missing) == 1 else f"slices {numbers} are"
            raise UserError(
                f"--join: {said} missing or unfinished in {root}; "
                f"run the same command with --slice {missing[0]}/{self._of} instead"
            )
        self.tokenizer = (root / str(every[0]) / TOKENIZER).read_bytes()
        self._blocks: dict[str, int] = {}
        self._sha256: dict[str, str] = {}
        for part in every:
            folder = root / str(part)
            try:
                done = json.loads((folder / _DONE).read_bytes())
                made_of, blocks = done["of"]
                self._blocks = self._blocks or dict(blocks)
                same = (made_of, blocks) == (settings, self._blocks)
                self._sha256 |= done["sha256"]
            except (ValueError, LookupError, TypeError):
                raise UserError(self._again(part, f"is damaged ({_DONE})")) from None
            if not same or (folder / TOKENIZER).read_bytes() != self.tokenizer:
                raise UserError(self._again(part, "has another text, tokenizer or settings than this build"))

    def encoded(self, split: Split, start: int) -> Iterator[Encoded]:
        """Yield the encoded batches of a split in order, skipping the first `start`."""
        for number in range(start // BLOCK, self._blocks[split]):
            part = Slice(number % self._of + 1, self._of)
            path = self.root / str(part) / _file(split, number)
            try:
                if sha256_of(path) != self._sha256.get(path.name):
                    raise ValueError("its SHA-256 differs from the one in done.json")
                block = _load(path)
            except Exception as error:  # a damaged file may raise any exception
                raise UserError(self._again(part, f"is damaged ({path.name}: {error})")) from None
            yield from block[max(0, start - BLOCK * number) :]

    def _again(self, part: Slice, why: str) -> str:
        named = f"{part.number}/{part.of}"
        folder = self.root / str(part)
        return f"--join: slice {named} {why}; delete {folder}, and run the same command with --slice {named} instead"


def _begun(root: Path) -> list[Slice]:
    names = [_NAME.fullmatch(path.name) for path in root.glob("*-of-*") if path.is_dir()]
    return [Slice(int(name[1]), int(name[2])) for name in names if name]


def _file(split: str, number: int) -> str:
    return f"{split}-{number:06d}.npz"


def _load(path: Path) -> list[Encoded]:
    counts, tokens = arrays_of(path, "counts", "tokens")
    sizes, rest = counts[:, 0], counts[:, 1:].tolist()
    if int(sizes.sum()) != len(tokens):
        raise ValueError("its counts do not match its tokens")
    parts: list[Any] = np.split(tokens, np.cumsum(sizes)[:-1])
    return [Encoded(part, *totals) for part, totals in zip(parts, rest, strict=True)]
