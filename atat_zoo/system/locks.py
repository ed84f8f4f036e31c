"""Locks between processes, which are released when the process that holds them ends."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atat_zoo.system.errors import UserError

_held: set[int] = set()  # descriptors
_LOOK = 0.02  # seconds, longer than `held` takes


def _let_go() -> None:
    """Close the parent's locks in a forked process, because loader workers outlive a killed trainer by seconds."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked(path: Path, busy: Callable[[str], object], *, keep: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Lock a file in a `with` block, creating it if needed, and write this process's id to it.

    If another process holds the lock, `busy` is called with the content of the file and, unless it raises an exception,
    this process waits. At the end, the file is deleted unless `keep` returns true. A folder or link at `path` raises a
    `UserError`.
    """
    descriptor = _opened(path)
    try:
        while True:
            if not _taken(descriptor):
                busy(os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(path, descriptor):
                break
            # The previous owner has deleted the file, so a lock on it has no effect.
            _close(descriptor)
            descriptor = _opened(path)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
            yield
        finally:
            if descriptor in _held and not keep():
                with suppress(OSError):
                    path.unlink()
    finally:
        _close(descriptor)


def _opened(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if not path.is_symlink() and not path.is_dir():
            raise
        what = "symbolic link" if path.is_symlink() else "folder"
        raise UserError(f"{path} is a {what}, but must be a regular file; remove it") from error
    _held.add(descriptor)
    return descriptor


def _close(descriptor: int) -> None:
    if descriptor in _held:  # not in a forked process, where the number may now belong to a different file
        _held.remove(descriptor)
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def held(path: Path) -> bool:
    """Return whether a process holds the lock on a file; False if the file does not exist or cannot be read."""
    # The check itself briefly holds a shared lock, which `locked` waits out.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # it may be a pipe
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _taken(descriptor: int) -> bool:
    """Try to take a lock several times, as another process may only be testing it; return whether it was taken."""
    for _ in range(5):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOOK)
    return False
