"""Build an experiment's shards (see `shards`) in a folder: completely or not at all, resumably, and only once.

    <root>/<name>.lock      locked while one process builds and the others wait
    <root>/<name>.partial   the unfinished build
    <root>/<name>.slices    the encoded text of a build in slices; see `slices`
    <root>/<name>           the complete shards, renamed from `.partial`

The folder's name ends in a hash of everything that determines its bytes, so experiments
with the same data share a folder. Memory use does not grow with the corpus: it is determined by `data.lanes` ·
`data.sequences_per_shard` sequences and the documents that are shuffled together.
"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from atat_zoo.data import SPLITS, Progress, Split, downloads, shard_manifest
from atat_zoo.data.dialogues import learned_text, texts_of
from atat_zoo.data.sequence_packing import (
    BATCH,
    PIECE,
    SHUFFLED,
    Encoded,
    Form,
    Packer,
    Piece,
    batches,
    dtype_for,
    encode,
    learnable,
    spread,
)
from atat_zoo.data.shards import write_split
from atat_zoo.data.tokenizers import Tokenizer, TokenizerModel
from atat_zoo.experiment.runs import sha256_of
from atat_zoo.experiment.schema import RECORDED, Experiment
from atat_zoo.registry.spec import unstructure
from atat_zoo.system import digests
from atat_zoo.system.atomic_files import FULL, discard, replacing, sync_folder, write_bytes, write_text
from atat_zoo.system.errors import UserError
from atat_zoo.system.locks import locked
from atat_zoo.system.machine import require

# Documents are shuffled with this seed, not the experiment's, so that runs with different seeds share their
# shards. The stream's order depends on the experiment's seed.
_SPREAD_SEED = 20240611
_NOTE = "settings"  # file in unfinished work that records its settings and text
_NOT_WRITABLE = frozenset({*FULL, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST})


@attrs.frozen
class ShardSource:
    """Hashes that change with the text, the tokenizer or the settings from which an experiment's shards are built."""

    settings: str  # hash of everything that determines the bytes
    fingerprint: dict[str, Any]  # of the text
    stamp: str  # changes whenever a file of the text is written, even with identical content

    @classmethod
    def now(cls, experiment: Experiment) -> ShardSource:
        """Return the source of an experiment's shards in its current state; this may hash a large corpus."""
        corpus = experiment.parts["corpus"]
        stamp = corpus.stamp()  # first, so that a later change is noticed
        fingerprint = json.loads(json.dumps(corpus.fingerprint()))  # as a manifest has it
        return cls(_hash(_settings(experiment, fingerprint)), fingerprint, "" if stamp is None else _hash(stamp))


class EncodedText(Protocol):
    """A build's text that has already been encoded, for example by `slices`."""

    tokenizer: bytes  # the file of the tokenizer that encoded it

    def encoded(self, split: Split, start: int) -> Iterator[Encoded]:
        """Yield the encoded batches of a split in order, skipping the first `start`."""


@attrs.frozen
class Build:
    """A build of shards in `folder` from the text that `source` describes."""

    experiment: Experiment
    source: ShardSource
    report: Progress

    @classmethod
    @contextmanager
    def from_experiment(cls, experiment: Experiment, progress: Progress | None) -> Iterator[Build]:
        """Yield an experiment's build, caching hashes in `data.root`; raise `UserError` if its rows exceed memory."""
        length = experiment.data.length
        apart = experiment.data.packing == "document" or experiment.data.format == "chat"
        held, rows = ("the rows of a batch", BATCH) if apart else ("a single sequence", 1)
        require(16 * rows * length, f"data.length = {length}", held, "lower it")
        report = progress or (lambda stage, done, total: None)
        with digests.kept_in(Path(experiment.data.root), report):
            yield cls(experiment, ShardSource.now(experiment), report)

    @property
    def folder(self) -> Path:
        """The folder of the shards, whether it exists or not."""
        parts, spec = self.experiment.parts, self.experiment.data
        names = f"{parts['corpus'].name}-{parts['tokenizer'].name}-{spec.length}"
        return Path(spec.root) / f"{names}-{self.source.settings[:10]}"

    def beside(self, suffix: str) -> Path:
        """Return the path next to `folder` with the suffix `lock`, `partial` or `slices`."""
        return self.folder.with_name(f"{self.folder.name}.{suffix}")

    def alone(self, lock: Path) -> AbstractContextManager[None]:
        """Lock a file during a `with` block; wait while another process holds the lock."""
        return locked(lock, lambda _: self.report("waiting", 0, None))

    def is_built(self) -> bool:
        """Return whether the shards are complete."""
        return (self.folder / shard_manifest.FILE).is_file()

    def finished(self) -> Path:
        """Return the folder of the finished shards; raise a `UserError` if they are damaged or have other settings."""
        if _verified(self.folder, self.experiment).settings != self.source.settings:
            raise UserError(
                f"{self.folder} holds shards built with different settings; delete it and run `atat data build` again"
            )
        return self.folder

    def unfinished(self, work: Path) -> Path:
        """Create the folder `work`, or empty it if it belongs to different settings or text, and return it."""
        note, begun = work / _NOTE, f"{self.source.settings}{self.source.stamp}"
        if work.is_dir() and not (note.is_file() and note.read_bytes() == begun.encode()):
            shutil.rmtree(work)
        if not work.is_dir():
            work.mkdir()
            write_text(note, begun)
        return work

    def check_unchanged(self, work: Path) -> None:
        """Check that the text has not changed; if it has, delete `work` and raise a `UserError`."""
        if ShardSource.now(self.experiment) != self.source:
            shutil.rmtree(work)
            raise UserError(
                "the text or the tokenizer file changed during the build, so the shards were discarded; run the same "
                "command again once the files have stopped changing"
            )

    def batches(self, split: Split) -> Iterator[list[Piece]]:
        """Yield the text of a split in batches, in stored order: shuffled for training, else as in the corpus."""
        spec = self.experiment.data
        documents = texts_of(self.experiment.parts["corpus"], split, spec.format)
        documents = spread(documents, _SPREAD_SEED) if split == "train" else documents
        return batches(documents, spec.packing, spec.format)

    def packer(self, model: TokenizerModel, split: Split) -> Packer:
        """Return a new `Packer` for a split, with the settings of `[data]`."""
        spec = self.experiment.data
        settings: dict[str, Any] = {"length": spec.length, "remainder": spec.remainder, **spec.recorded}
        dtype = dtype_for(model.vocabulary_size, spec.dtype, spec.format)
        limit = spec.sequences if split == "train" else None
        return Packer(model, **settings, dtype=dtype, limit=limit)

    def tokenizer_in(self, work: Path) -> int | None:
        """Train and save the tokenizer unless `work` has it; return the number of characters read, or None if 0."""
        if (work / shard_manifest.TOKENIZER).is_file():
            return None
        done, corpus, form = 0, self.experiment.parts["corpus"], self.experiment.data.format
        size = corpus.size() if form == "text" else None  # in bytes, including held-out text

        def documents() -> Iterator[str]:
            nonlocal done
            done = shown = 0
            for text in texts_of(corpus, "train", form):
                for each in learned_text(text) if form == "chat" else [text]:
                    yield from learnable(each)
                done += len(text)
                if done - shown >= PIECE:
                    shown = done
                    self.report("tokenizer", done, size and max(size, done))

        self.report("tokenizer", 0, size)
        saved = work / "tokenizer.tmp"
        saved.mkdir(exist_ok=True)
        self.experiment.parts["tokenizer"].train(documents).save(saved)
        write_bytes(work / shard_manifest.TOKENIZER, (saved / shard_manifest.TOKENIZER).read_bytes())
        shutil.rmtree(saved)
        self.report("tokenizer", done, done)
        return done or None

    def write(self, work: Path, encoder: Encoder, slices: EncodedText | None) -> None:
        """Write all files of the shards to the folder `work`, the manifest last."""
        tokenizer, spec = self.experiment.parts["tokenizer"], self.experiment.data
        characters = self.tokenizer_in(work)
        model = tokenizer.load(work)
        packers = {split: self.packer(model, split) for split in SPLITS}
        splits: dict[str, shard_manifest.SplitRecord] = {}
        with encoder.of(tokenizer, work, packers["train"]):
            for split, packer in packers.items():
                train = split == "train"

                def encoded(start: int, split: Split = split) -> Iterator[Encoded]:
                    if slices:
                        return slices.encoded(split, start)
                    return encoder.encoded(islice(self.batches(split), start, None))

                order = f"shuffled in blocks of {SHUFFLED} characters" if train else "as in the corpus"
                shards = write_split(work, split, encoded, packer, spec, self.report, characters if train else None)
                splits[split] = shard_manifest.SplitRecord(
                    **attrs.asdict(packer.totals), order=order, shards=tuple(shards)
                )
                if train:
                    with replacing(work / shard_manifest.COUNTS) as part, part.open("wb") as file:
                        np.save(file, packer.counts, allow_pickle=False)
        contents = shard_manifest.ShardManifest(
            format=shard_manifest.FORMAT,
            settings=self.source.settings,
            made_by={name: metadata.version(name) for name in ("atat-zoo", "tokenizers")},
            **{key: getattr(spec, key) for key in ("length", "remainder", "lanes")},
            **spec.recorded,
            **{key: getattr(model, key) for key in ("vocabulary_size", "bos", "eos")},
            dtype=packers["train"].dtype.name,
            block=spec.sequences_per_member,
            tokenizer=tokenizer.identity(),
            corpus=unstructure(self.experiment.parts["corpus"]),
            fingerprint=self.source.fingerprint,
            sha256={name: sha256_of(work / name) for name in (shard_manifest.TOKENIZER, shard_manifest.COUNTS)},
            splits=splits,
        )
        for path in [*work.glob("*.state.npz"), *work.glob(".*.part"), work / _NOTE]:  # no longer needed to resume
            path.unlink()
        write_text(work / shard_manifest.FILE, contents.to_json())


def build(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    processes: int = 1,
    throughput: Throughput | None = None,
    slices: Callable[[Path, str], EncodedText] | None = None,
) -> Path:
    """Build the shards of an experiment unless they exist, and return their folder.

    If another process builds the same shards, wait for it. Every problem that the user can fix raises a `UserError`:
    missing text, a full disk, too little text for the lanes, and so on.

    Args:
        experiment: provides the corpus, the tokenizer and `[data]`.
        progress: called with stage, amount done and total, in bytes (`hashing`) or characters; the total may be None.
        processes: number of encoding processes, which does not affect the shards. A script that passes more than 1
            needs `if __name__ == "__main__"`, because the processes import it.
        throughput: records the amount of encoded text and the time taken.
        slices: maps the folder of slices and the hash of the settings to the slices' text; for `slices.join` only.
    """

    def build_in(wanted: Build) -> Path:
        folder = wanted.folder
        with wanted.alone(wanted.beside("lock")):
            if wanted.is_built():  # by another process, while this one waited
                return wanted.finished()
            if folder.exists():
                raise UserError(f"{folder} exists but holds no {shard_manifest.FILE}; move it elsewhere or delete it")
            joined = slices(wanted.beside("slices"), wanted.source.settings) if slices else None
            work = wanted.unfinished(wanted.beside("partial"))
            if joined:
                write_bytes(work / shard_manifest.TOKENIZER, joined.tokenizer)
            wanted.write(work, Encoder(processes, throughput), joined)
            wanted.check_unchanged(work)
            work.rename(folder)
            sync_folder(folder.parent)
            discard(wanted.beside("slices"))
        return folder

    return unless_built(experiment, progress, build_in)


def unless_built(experiment: Experiment, progress: Progress | None, make: Callable[[Build], Path]) -> Path:
    """Return the folder of existing shards after checking them, or, if there are none, the path that `make` returns."""
    given = experiment.parts["corpus"].built()
    if given is not None:
        return _check_given(given, experiment)
    with Build.from_experiment(experiment, progress) as wanted:
        if wanted.is_built():
            return wanted.finished()
        parent = wanted.folder.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            return make(wanted)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            raise UserError(
                f"data.root: cannot write to {parent} ({error.strerror}: {error.filename}); make it writable or free "
                "some space, then run the same command again to resume the build, or set data.root to another folder"
            ) from None


def _settings(experiment: Experiment, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Return everything that determines the bytes of the shards, including the fingerprint of the text."""
    corpus, tokenizer, spec = experiment.parts["corpus"], experiment.parts["tokenizer"], experiment.data
    # All folder names depend on this table: keys at their defaults are left out, so that a new key renames no folder.
    defaults = {"sequences": None, "rows": "packed", "form": "text"}
    settings = spec.recorded | {"sequences": spec.sequences}
    optional = {key: settings[key] for key, value in defaults.items() if settings[key] != value}
    optional |= {"template": tokenizer.template} if "form" in optional else {}
    # Rows of earlier versions, in which a content and the template's text could share a token, are built again.
    optional |= {"contents": "apart"} if optional.get("template") else {}
    file = tokenizer.fingerprint()
    # So are those of a tokenizer's file, whose added tokens were read from text.
    optional |= {"added": "unread"} if file else {}
    return {
        "format": shard_manifest.FORMAT,
        "corpus": corpus.identity(),
        "text": fingerprint,
        "spread": [_SPREAD_SEED, SHUFFLED],
        "tokenizer": tokenizer.identity(),
        "tokenizer_file": file,
        "data": optional
        | {"block": spec.sequences_per_member, "shard": spec.sequences_per_shard}
        | {"special": spec.special_tokens}
        | {key: getattr(spec, key) for key in ("length", "remainder", "dtype", "lanes")},
    }


def _hash(table: Any) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _check_given(folder: Path, experiment: Experiment) -> Path:
    contents = _verified(folder, experiment)
    origin = downloads.origin_of(folder)
    path = origin.path if origin else folder
    wanted: dict[str, tuple[Any, Any]] = {
        f"data.{key}": (getattr(experiment.data, key), getattr(contents, stored))
        for key, stored in {"length": "length", **RECORDED}.items()
    }
    problems = []
    try:
        wanted["tokenizer"] = _tokenizers(experiment.parts["tokenizer"], folder, contents)
    except UserError as error:
        problems.append(str(error))
    for key, (asked, there) in wanted.items():
        if asked != there:
            problems.append(f"{key}: the shards in {path} have {_show(there)}, but the experiment has {_show(asked)}")
    if problems:
        raise UserError("\n".join(problems))
    return folder


def _tokenizers(tokenizer: Tokenizer, folder: Path, contents: shard_manifest.ShardManifest) -> tuple[Any, Any]:
    """Return the identities of the experiment's and the shards' tokenizer, based on their files, not their paths."""
    name = shard_manifest.TOKENIZER
    asked, there, sha256 = tokenizer.identity(), contents.tokenizer, contents.sha256[name]
    try:
        mine = tokenizer.fingerprint()
        if mine is None:
            return asked, there
        if tokenizer.like is not None:
            own = tokenizer.load(folder)
        else:
            own = tokenizer.train(lambda: iter(()))
            mine = _saved(own)
    except UserError:  # the file of the experiment's tokenizer is missing
        if asked == there:
            return asked, there
        raise
    if mine != sha256:
        with suppress(UserError):  # another version of the library may have written the same tokenizer differently
            mine = sha256 if mine == _saved(tokenizer.load(folder)) else mine
    asked, there = (
        {
            f"SHA-256 of {shard_manifest.TOKENIZER}": digest,
            "vocabulary size": of.vocabulary_size,
            "bos": of.bos,
            "eos": of.eos,
        }
        for digest, of in ((mine, own), (sha256, contents))
    )
    return asked, there


def _saved(model: TokenizerModel) -> str:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        return sha256_of(Path(folder) / shard_manifest.TOKENIZER)


def _verified(folder: Path, experiment: Experiment) -> shard_manifest.ShardManifest:
    """Return the manifest after checking the shards, except training shards if damaged ones are to be skipped."""
    skip = experiment.data.on_corrupt == "skip"
    return shard_manifest.verify(folder, splits=[split for split in SPLITS if not (skip and split == "train")])


def _show(value: Any) -> str:
    return ", ".join(f"{k} = {v!r}" for k, v in value.items()) if isinstance(value, dict) else json.dumps(value)


_SAFE = "PYTHONSAFEPATH"
_job: list[tuple[Any, Form]] = []  # the tokenizer and the form, in a process that was started for it


@attrs.define
class Throughput:
    """The amount of encoded text, and the time spent on reading, encoding and packing."""

    bytes: int = 0  # in UTF-8
    seconds: float = 0.0
    core_seconds: float = 0.0  # of processor time, in all processes together

    @property
    def per_core(self) -> float:
        """Megabytes of text encoded per second and core."""
        return self.bytes / 1e6 / max(self.core_seconds, 1e-9)


class Encoder:
    """Encodes the batches of a build in several processes or, if `processes` is 1, with the threads of `tokenizers`."""

    def __init__(self, processes: int = 1, throughput: Throughput | None = None) -> None:
        self._processes, self._throughput = processes, throughput or Throughput()
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def of(self, tokenizer: Any, folder: Path, packer: Packer) -> Iterator[None]:
        """Let `encoded` use a tokenizer and a packer in a `with` block; then record its time and end the processes."""
        self._here = packer.encode
        self._there = (tokenizer, folder, packer.form)
        start, core_start = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            self._throughput.seconds += time.perf_counter() - start
            self._throughput.core_seconds += time.process_time() - core_start

    def encoded(self, batches: Iterator[Sequence[Piece]]) -> Iterator[Encoded]:
        """Yield the tokens of each batch; raise a `UserError` if text cannot be encoded or a process is killed."""
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        # Starting a process takes longer than encoding one batch.
        several = self._processes > 1 and len(first) > 1
        for encoded in self._elsewhere(batches) if several else map(self._here, batches):
            self._throughput.bytes += encoded.bytes
            yield encoded

    def _elsewhere(self, batches: Iterator[Sequence[Piece]]) -> Iterator[Encoded]:
        waiting: deque[Future[tuple[Encoded, float]]] = deque()
        try:
            for batch in batches:
                waiting.append(self._submit(batch))
                if len(waiting) >= 2 * self._processes:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        except BrokenProcessPool:
            raise UserError(
                "an encoding process was killed, probably because memory ran out; run the same command again with a "
                "smaller --processes to resume the build"
            ) from None
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, batch: Sequence[Piece]) -> Future[tuple[Encoded, float]]:
        # A new process would import from the working folder until it has received this one's import path.
        safe = os.environ.get(_SAFE)
        os.environ[_SAFE] = "1"
        try:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._processes, context, _begin, self._there)
            # Ctrl-C reaches all processes in a terminal. The processes started here never see it, and this one ends
            # them. Creating the pool unblocks the signal, so it is blocked only afterwards.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return self._pool.submit(_encode, batch)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        finally:
            del os.environ[_SAFE]
            os.environ |= {} if safe is None else {_SAFE: safe}

    def _result(self, future: Future[tuple[Encoded, float]]) -> Encoded:
        encoded, seconds = future.result()
        self._throughput.core_seconds += seconds
        return encoded


def _begin(tokenizer: Any, folder: Path, form: Form) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process uses one core
    threading.Thread(target=_follow, daemon=True).start()
    _job.append((tokenizer.load(folder), form))


def _follow() -> None:
    """Exit when the parent process exits, instead of waiting for its text forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _encode(batch: Sequence[Piece]) -> tuple[Encoded, float]:
    start = time.process_time()
    encoded = encode(*_job[0], batch)
    return encoded, time.process_time() - start


@attrs.frozen(kw_only=True)
class BuildEstimate:
    """The estimated time and disk space of a build."""

    text: int  # bytes
    shards: int  # bytes
    seconds: float  # to encode, after a tokenizer is trained
    free: int  # bytes on the disk of `data.root`


def estimate(
    experiment: Experiment, *, processes: int = 1, share: float = 1.0, progress: Progress | None = None
) -> BuildEstimate | None:
    """Return a build's estimated time and size, or None if the shards exist, or the text is empty or of unknown size.

    The size of dialogues is always unknown. `text` and `shards` cover all slices of a build; `seconds` covers only the
    `share` that is encoded here. A `UserError` is raised if this share of the shards does not fit on the disk.
    """
    corpus, spec = experiment.parts["corpus"], experiment.data
    if spec.format == "chat" or not (size := corpus.size()):
        return None
    with Build.from_experiment(experiment, progress) as wanted:
        batched = batches(corpus.documents("train"), spec.packing)
        if wanted.is_built() or not (batch := next(batched, None)):
            return None
        # A tokenizer that has to be trained is trained only on the sample.
        packer = wanted.packer(experiment.parts["tokenizer"].train(lambda: (p.text for p in batch)), "train")
        start = time.process_time()
        sample = packer.encode(batch)
        seconds = time.process_time() - start
    if not sample.bytes:
        return None
    read = sample.bytes
    if spec.packing == "document":  # including text that was truncated
        read = sum(len(text.encode()) for text in islice(corpus.documents("train"), sample.documents))
    scale = size / read
    sequences = scale * len(sample.tokens) / packer.body
    if spec.sequences is not None and spec.sequences < sequences:  # the held-out text is small in comparison
        scale, sequences = scale * spec.sequences / sequences, spec.sequences
    root = next(path for path in wanted.folder.absolute().parents if path.is_dir())
    likely = BuildEstimate(
        text=round(scale * read),
        shards=round(sequences * spec.length * packer.dtype.itemsize),
        seconds=share * scale * seconds / processes,
        free=shutil.disk_usage(root).free,
    )
    there = sum(path.stat().st_size for path in wanted.beside("partial").glob("*.tar"))
    if share * likely.shards - there > likely.free:
        raise UserError(
            f"data.root: the shards need about {share * likely.shards / 1e9:,.1f} GB, but {spec.root} has only "
            f"{likely.free / 1e9:,.1f} GB free; free some space, or set data.root to a folder on a larger disk"
        )
    return likely
