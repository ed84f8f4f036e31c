"""SHA-256 hashes of large files, cached with the shards until the files change.

A hash is cached with the file's size, modification times and inode. As in git, the hash of a file that was written
within the last few seconds is not cached, because a file may be written twice within one tick of the file system's
clock.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from atat_zoo.system.atomic_files import write_text
from atat_zoo.system.errors import UserError

# A stage, its completed amount, and its total if known.
Report = Callable[[str, int, int | None], None]

FILE = "digests.json"
_TICK = 2 * 10**9  # nanoseconds within which every clock has ticked
_PIECE = 1 << 24  # bytes read at once
_HASHED_AT_ONCE = 64 << 20  # bytes of all files; beyond this, the hash of each file is kept until it changes


class Stamp(NamedTuple):
    """A file's path, size, times and inode, some of which change when it is written, even with identical content."""

    path: str
    size: int
    modified: int  # in nanoseconds, like `changed`
    changed: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Return the stamp of a file; raise a `UserError` if it cannot be read."""
        try:
            status = path.stat()
        except OSError as error:
            raise unreadable(path, error) from None
        return cls(str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


Stamps = tuple[Stamp, ...]
_kept_in: ContextVar[tuple[Path | None, Report]] = ContextVar("kept_in", default=(None, lambda *_: None))
_of_this_process: dict[str, list[Any]] = {}  # path -> the rest of its stamp, and its hash


def unreadable(path: str | Path, error: OSError) -> UserError:
    """Return the `UserError` for a file of a corpus that cannot be read."""
    return UserError(f"corpus: {path} cannot be read: {error.strerror or error}; restore it, or name a different file")


@contextmanager
def kept_in(root: Path, report: Report) -> Iterator[None]:
    """Cache hashes in a file in `root` during a `with` block, and report the bytes hashed as the stage `hashing`."""
    token = _kept_in.set((root / FILE, report))
    try:
        yield
    finally:
        _kept_in.reset(token)


def sha256_of_each(files: Sequence[Stamp]) -> list[str]:
    """Return the SHA-256 of each file in hexadecimal; files whose stamp has not changed are not read again."""
    path_of_hashes, report = _kept_in.get()
    hashes = _load(path_of_hashes) | _of_this_process
    new: dict[str, list[Any]] = {}
    done, total = 0, sum(file.size for file in files)
    for path, *state in files:
        before = hashes.get(path)
        if before is None or before[:-1] != state:
            settled = max(state[1], state[2]) < time.time_ns() - _TICK
            hashes[path] = [*state, _sha256(path, done, total, report)]
            if settled:
                new[path] = hashes[path]
        done += state[0]
    _of_this_process.update(new)
    if new and path_of_hashes is not None:
        with suppress(UserError):  # if the folder is not writable, every process hashes again
            write_text(path_of_hashes, json.dumps(_load(path_of_hashes) | new, indent=1) + "\n")
    return [hashes[file.path][-1] for file in files]


def _sha256(path: str, done: int, total: int, report: Report) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                report("hashing", done, total)
    except OSError as error:
        raise unreadable(path, error) from None
    return digest.hexdigest()


def _load(path_of_hashes: Path | None) -> dict[str, list[Any]]:
    """Return the cached hashes, or an empty table if the file is damaged."""
    with suppress(OSError, ValueError, RecursionError, TypeError, AttributeError, LookupError):
        content = json.loads(path_of_hashes.read_bytes() if path_of_hashes else "{}")
        return {path: entry for path, entry in content.items() if re.fullmatch("[0-9a-f]{64}", entry[-1])}
    return {}


def fingerprint_of(stamps: Iterable[Stamp]) -> dict[str, Any]:
    """Return the number of files, their total size in bytes, and a hash of their contents, in order."""
    files = list(stamps)
    sizes = [file.size for file in files]
    counts: dict[str, Any] = {"files": len(files), "bytes": sum(sizes)}
    digest = hashlib.sha256()
    if sum(sizes) > _HASHED_AT_ONCE:
        digest.update("\n".join(sha256_of_each(files)).encode())
        return counts | {"sha256 of the files' SHA-256": digest.hexdigest()}
    # Small enough to hash every time, so that no change is missed.
    for file in files:
        try:
            digest.update(f"{file.size}\0".encode() + Path(file.path).read_bytes())
        except OSError as error:
            raise unreadable(file.path, error) from None
    return counts | {"sha256": digest.hexdigest()}
