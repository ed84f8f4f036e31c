"""Build a folder of shards from an experiment: atomically, resumably, once.

    <root>/<name>.lock      locked while one process builds; the others wait
    <root>/<name>.partial   the unfinished build
    <root>/<name>.slices    encoded text, if it is encoded in slices: see `slices`
    <root>/<name>           the complete shards, after a rename

The name ends in a hash of everything that determines the bytes, so experiments
with the same data share a folder. Memory is bounded by C · `sequences_per_shard`
sequences and by the documents shuffled at once, for a corpus of any size.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from atat_zoo.data import SPLITS, Progress, Split, digests, manifest
from atat_zoo.data.encoding import Encoder, Throughput
from atat_zoo.data.given import check_given, verified
from atat_zoo.data.pack import BATCH, PIECE, SHUFFLED, Encoded, Packer, Piece, batches, dtype_for, pieces, spread
from atat_zoo.data.shards import forget_states, write_split
from atat_zoo.errors import UserError
from atat_zoo.experiment.schema import Experiment
from atat_zoo.machine import require
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import sha256_of
from atat_zoo.run.atomic import discard, replacing, sync_folder, write_bytes, write_text
from atat_zoo.run.locks import locked
from atat_zoo.tokenizers import TokenizerModel

if TYPE_CHECKING:
    from atat_zoo.data.slices import Slices


# Documents are shuffled with this seed and not with the experiment's, so that runs with different seeds share their
# shards. The stream's order depends on the experiment's seed.
_SPREAD_SEED = 20240611
_NOT_WRITABLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST}
)


@attrs.frozen
class ShardSource:
    """What shards are made of, at one moment."""

    settings: str  # hash of everything that determines the bytes
    fingerprint: dict[str, Any]  # of the text
    stamp: str  # changes whenever a file of the text is written, even back to what it was

    @classmethod
    def now(cls, experiment: Experiment) -> ShardSource:
        """Return what an experiment's shards are made of; the files of a large text are hashed if need be."""
        corpus = experiment.parts["corpus"]
        stamp = corpus.stamp()  # first: what is written later is seen
        fingerprint = json.loads(json.dumps(corpus.fingerprint()))  # as a manifest has it
        return cls(_hash(_settings(experiment, fingerprint)), fingerprint, "" if stamp is None else _hash(stamp))


def folder_for(experiment: Experiment, source: ShardSource) -> Path:
    """Return the folder for shards that are made of this."""
    corpus, tokenizer, spec = experiment.parts["corpus"], experiment.parts["tokenizer"], experiment.data
    return Path(spec.root) / f"{corpus.name}-{tokenizer.name}-{spec.length}-{source.settings[:10]}"


def build(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    processes: int = 1,
    throughput: Throughput | None = None,
    slices: Callable[[Path, str], Slices] | None = None,
) -> Path:
    """Build the shards of an experiment unless they exist, and return their folder.

    Every problem that the user can fix is a `UserError`: missing text, a full disk, too little text for the lanes, …

    Args:
        experiment: its corpus, tokenizer and `[data]` are used.
        progress: called with the stage and what is done of it: `hashing` (bytes), `waiting`, `tokenizer`, or a split
            (characters).
        processes: how many encode; the bytes are the same. With 1 it is this process, which has the threads of the
            tokenizer's library; a script that asks for more needs `if __name__ == "__main__"`, as they import it.
        throughput: where text and time are counted.
        slices: opens the folder of the encoded text, for `slices.join`.
    """
    report = progress or silent

    def build_in(source: ShardSource, folder: Path) -> Path:
        with only_one(folder, report):
            if (folder / manifest.FILE).is_file():  # another process was faster
                return finished(folder, experiment, source)
            if folder.exists():
                raise UserError(f"{folder} exists but holds no {manifest.FILE}; move it away or delete it")
            joined = slices(beside(folder, "slices"), source.settings) if slices else None
            work = unfinished(beside(folder, "partial"), source)
            if joined:
                write_bytes(work / manifest.TOKENIZER, joined.tokenizer)
            _fill(work, experiment, source, report, Encoder(processes, throughput), joined)
            check_unchanged(experiment, source, work)
            work.rename(folder)
            sync_folder(folder.parent)
            discard(beside(folder, "slices"))
        return folder

    return unless_built(experiment, report, build_in)


def unless_built(experiment: Experiment, report: Progress, make: Callable[[ShardSource, Path], Path]) -> Path:
    """Return the folder of shards if they are built, checked; else what `make` returns for their source and folder."""
    given = experiment.parts["corpus"].built()
    if given is not None:
        return check_given(given, experiment)
    with source_of(experiment, report) as source:
        folder = folder_for(experiment, source)
        if (folder / manifest.FILE).is_file():
            return finished(folder, experiment, source)
        with _writing(folder):
            return make(source, folder)


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


@contextlib.contextmanager
def source_of(experiment: Experiment, report: Progress) -> Iterator[ShardSource]:
    """Give what the shards are made of, and keep the hashes of its files beside them."""
    length, apart = experiment.data.length, experiment.data.rows == "document"
    held, rows = ("the rows of a batch", BATCH) if apart else ("a single sequence", 1)
    require(16 * rows * length, f"data.length = {length}", held, "lower it")
    with digests.kept_in(Path(experiment.data.root), report):
        yield ShardSource.now(experiment)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say in a sentence if nothing can be written beside a folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise UserError(
            f"data.root: cannot write in {folder.parent} ({error.strerror}: {error.filename}); free some space, or set "
            "data.root to a folder that you may write to, and run the same command again: it continues where it was"
        ) from None


def check_unchanged(experiment: Experiment, source: ShardSource, work: Path) -> None:
    """Check that nothing has written to the text; else delete what was made of it."""
    if ShardSource.now(experiment) != source:
        shutil.rmtree(work)
        raise UserError(
            "the text, or the tokenizer's file, was written to while its shards were built, so they are not "
            "kept; run the same command again once nothing writes there any more"
        )


def beside(folder: Path, suffix: str) -> Path:
    """Return what stands beside the folder of shards: `lock`, `partial` or `slices`."""
    return folder.with_name(f"{folder.name}.{suffix}")


def finished(folder: Path, experiment: Experiment, source: ShardSource) -> Path:
    """Return the folder of shards that are built, after checking that they are made of this."""
    contents = verified(folder, experiment)
    if contents.settings != source.settings:
        raise UserError(f"{folder} holds shards of other settings; delete it and run `atat data build` again")
    return folder


def _fill(
    work: Path, experiment: Experiment, source: ShardSource, report: Progress, encoder: Encoder, slices: Slices | None
) -> None:
    """Write all files of a folder of shards, the manifest last."""
    corpus, tokenizer, spec = experiment.parts["corpus"], experiment.parts["tokenizer"], experiment.data
    characters = tokenizer_in(work, experiment, report)
    model = tokenizer.load(work)
    packers = {split: packer_of(experiment, model, split) for split in SPLITS}
    splits: dict[str, manifest.SplitRecord] = {}
    with encoder.of(tokenizer, work, packers["train"]):
        for split, packer in packers.items():
            train = split == "train"

            def encoded(start: int, split: Split = split) -> Iterator[Encoded]:
                if slices:
                    return slices.encoded(split, start)
                return encoder.encoded(islice(batches_of(experiment, split), start, None))

            order = f"shuffled in blocks of {SHUFFLED} characters" if train else "as in the corpus"
            shards = write_split(work, split, encoded, packer, spec, report, characters if train else None)
            splits[split] = manifest.SplitRecord(**attrs.asdict(packer.totals), order=order, shards=tuple(shards))
            if train:
                with replacing(work / manifest.COUNTS) as part, part.open("wb") as file:
                    np.save(file, packer.counts, allow_pickle=False)
    contents = manifest.ShardManifest(
        format=manifest.FORMAT,
        settings=source.settings,
        made_by={name: metadata.version(name) for name in ("atat-zoo", "tokenizers")},
        **{key: getattr(spec, key) for key in ("length", "special", "rows", "remainder", "lanes")},
        **{key: getattr(model, key) for key in ("vocabulary_size", "bos", "eos")},
        dtype=packers["train"].dtype.name,
        block=spec.sequences_per_member,
        tokenizer=tokenizer.identity(),
        corpus=unstructure(corpus),
        fingerprint=source.fingerprint,
        sha256={name: sha256_of(work / name) for name in (manifest.TOKENIZER, manifest.COUNTS)},
        splits=splits,
    )
    forget_states(work)
    (work / "settings").unlink()
    write_text(work / manifest.FILE, contents.to_json())


def batches_of(experiment: Experiment, split: Split) -> Iterator[list[Piece]]:
    """Return the batches of a split in the order of their sequences."""
    documents = experiment.parts["corpus"].documents(split)
    return batches(spread(documents, _SPREAD_SEED) if split == "train" else documents, experiment.data.rows)


def packer_of(experiment: Experiment, model: TokenizerModel, split: Split) -> Packer:
    """Return the packer of a split."""
    spec = experiment.data
    settings = {key: getattr(spec, key) for key in ("length", "special", "remainder", "rows")}
    dtype, limit = dtype_for(model.vocabulary_size, spec.dtype), spec.sequences if split == "train" else None
    return Packer(model, **settings, dtype=dtype, limit=limit)


def tokenizer_in(work: Path, experiment: Experiment, report: Progress) -> int | None:
    """Train and save the tokenizer unless it is there; return the characters of the training text if it was read."""
    if (work / manifest.TOKENIZER).is_file():
        return None
    corpus, tokenizer = experiment.parts["corpus"], experiment.parts["tokenizer"]
    done = 0

    def documents() -> Iterator[str]:
        nonlocal done
        done = shown = 0
        for text in corpus.documents("train"):
            # A word of a hundred million letters would take gigabytes; other words are not cut.
            yield from [text] if len(text) <= PIECE else (piece.text for piece in pieces(text))
            done += len(text)
            if done - shown >= PIECE:
                shown = done
                report("tokenizer", done, None)

    report("tokenizer", 0, None)
    saved = work / "tokenizer.tmp"
    saved.mkdir(exist_ok=True)
    tokenizer.train(documents).save(saved)
    write_bytes(work / manifest.TOKENIZER, (saved / manifest.TOKENIZER).read_bytes())
    shutil.rmtree(saved)
    report("tokenizer", done, done)
    return done or None


def unfinished(work: Path, source: ShardSource) -> Path:
    """Return the folder of unfinished work, emptied if its settings differ or its text was written to since."""
    note, begun = work / "settings", f"{source.settings}{source.stamp}"
    if work.is_dir() and not (note.is_file() and note.read_bytes() == begun.encode()):
        shutil.rmtree(work)
    if not work.is_dir():
        work.mkdir()
        write_text(note, begun)
    return work


def only_one(folder: Path, report: Progress) -> AbstractContextManager[None]:
    """Lock a folder of shards; while another process has it, wait."""
    return locked(beside(folder, "lock"), lambda _: report("waiting", 0, None))


def _settings(experiment: Experiment, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Return everything that determines the bytes of the shards, with the fingerprint of the text."""
    corpus, tokenizer, spec = experiment.parts["corpus"], experiment.parts["tokenizer"], experiment.data
    # The names of all folders hang on this table: keys at their defaults are left out, so that a new one renames none.
    optional: dict[str, Any] = {} if spec.sequences is None else {"sequences": spec.sequences}
    optional |= {} if spec.rows == "packed" else {"rows": spec.rows}
    return {
        "format": manifest.FORMAT,
        "corpus": corpus.identity(),
        "text": fingerprint,
        "spread": [_SPREAD_SEED, SHUFFLED],
        "tokenizer": tokenizer.identity(),
        "tokenizer_file": tokenizer.fingerprint(),
        "data": optional
        | {"block": spec.sequences_per_member, "shard": spec.sequences_per_shard}
        | {key: getattr(spec, key) for key in ("length", "special", "remainder", "dtype", "lanes")},
    }


def _hash(table: Any) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
