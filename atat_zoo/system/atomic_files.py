"""Write files and folders atomically: they are written under a temporary name, synced and renamed.

A killed process leaves `.NAME.PROCESS@HOST.part`, which is deleted by the next process on that host that writes NAME.
"""

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from atat_zoo.system import locks
from atat_zoo.system.errors import UserError, clip

# Part of the name, because a process cannot tell whether a process on a different host is still running.
HOST = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
# How safetensors and tokenizers, written in Rust, name a system error, which they raise without `errno`.
_OF_RUST = re.compile(r"\(os error (\d+)\)")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success, it durably replaces `path`.

    On failure, `path` is unchanged. A file system error, or a device or pipe at `path`, raises a `UserError`.
    """
    target = Path(os.path.realpath(path))  # a symbolic link stays a link
    beside = _part(target)
    try:
        with _said(path, f"{_ELSEWHERE}, then try again; the previous content is unchanged"):
            if target.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.exists() and not target.is_file() and not target.is_dir():
                # A rename would replace the device itself, for all users of the machine.
                raise UserError(f"{path} is a device or a pipe, which cannot be replaced; name a file")
            target.parent.mkdir(parents=True, exist_ok=True)
            clean(target.parent, target.name)
            mode = _mode(beside)
            yield beside
            _settle(beside, mode)
            beside.replace(target)
            sync_folder(target.parent)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def making_folder(path: Path, *, replace: bool = False, shown: Path | None = None) -> Iterator[Path]:
    """Yield an empty temporary folder; on success, it durably becomes the folder `path`.

    With `replace`, the previous content of `path` is deleted; the caller must ensure that no other process writes
    there. Without it, a `UserError` is raised if `path` is not empty or is being written by another process. Messages
    name `shown` (default: `path`).
    """
    shown = shown or path
    target = Path(os.path.realpath(path))
    beside, lock = _part(target), target.with_name(f".{target.name}.lock")

    def refuse(owner: str) -> None:
        raise UserError(
            f"{clip(shown)} is being written by another process ({owner}); wait for it, or choose a different name"
        )

    try:
        with _said(shown, _ELSEWHERE), ExitStack() as stack:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not replace:
                stack.enter_context(locks.locked(lock, refuse, keep=lambda: False))
            clean(target.parent, target.name)
            mode = _mode(beside)
            stack.callback(shutil.rmtree, beside, ignore_errors=True)
            beside.mkdir()
            yield beside
            for inside in (*beside.rglob("*"), beside):
                _settle(inside, mode)
            if replace and target.exists():
                _exchange(beside, target)
            elif target.is_dir() and any(target.iterdir()):
                raise UserError(f"{clip(shown)} is no longer empty and was left unchanged; name a new folder")
            else:  # fails if the folder has been filled in the meantime
                beside.rename(target)
            sync_folder(target.parent)
    except UserError as error:  # from a file in the folder
        raise UserError(str(error).replace(str(beside), str(shown))) from error


def _exchange(beside: Path, target: Path) -> None:
    """Replace the folder `target` with `beside`, and delete the old one; if killed, `clean` repairs the damage."""
    before = _part(target, "before.")
    target.rename(before)
    try:
        beside.rename(target)
    except OSError:
        before.rename(target)
        raise
    discard(before)


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # errors that free space mends
_ELSEWHERE = "free some space or choose a different folder"


@contextmanager
def _said(path: Path, remedy: str) -> Iterator[None]:
    """Raise a `UserError` for file system errors, including errors that a library rephrases."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = _OF_RUST.search(str(error))
        if found is None and not isinstance(error, OSError):
            raise
        reason = os.strerror(int(found[1])) if found else getattr(error, "strerror", None) or error
        raise UserError(f"{clip(path)} cannot be written: {reason}; {remedy}") from error


def _part(target: Path, infix: str = "") -> Path:
    return target.with_name(f".{target.name}.{infix}{os.getpid()}@{HOST}.part")


def _mode(beside: Path) -> int:
    """Return the mode that Python gives new files, by creating one at a temporary path."""
    beside.touch()
    mode = beside.stat().st_mode
    beside.unlink()
    return mode


def _settle(path: Path, mode: int) -> None:
    """Make a written file durable and give it the usual permissions, which some libraries restrict."""
    if path.is_dir():
        sync_folder(path)
    else:
        path.chmod(mode)
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def check_name(path: Path) -> None:
    """Raise a `UserError` if the path of a folder is not UTF-8, which libraries that save models require."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{clip(path)}: the name is not UTF-8; choose a different name") from None


def discard(path: Path) -> None:
    """Delete a file or folder; a folder is renamed first, so that it is never found half deleted."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.endswith(".part"):
        path = path.rename(_part(path, "old."))
    shutil.rmtree(path, ignore_errors=True)


def clean(folder: Path, name: str | None = None) -> None:
    """Remove the unfinished files that killed processes on this host left in a folder: those for `name`, or all.

    If a process was killed after it moved a folder away and before it put the new one in place, the folder is restored.
    """
    named = r".+?" if name is None else re.escape(name)
    part_of = re.compile(rf"\.({named})(\.old|\.before)?\.(\d+)@{HOST}\.part", re.DOTALL)
    for part in folder.glob(".*.part"):
        if (found := part_of.fullmatch(part.name)) and not _running(int(found[3])):
            with suppress(OSError):
                target = part.with_name(found[1])
                if found[2] == ".before" and not os.path.lexists(target):
                    part.rename(target)
                else:
                    discard(part)


def _running(process: int) -> bool:
    """Return whether a different process has this id; this process has no unfinished files when it cleans."""
    try:
        with suppress(PermissionError):
            os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return process != os.getpid()


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(files: dict[Path, bytes]) -> None:
    """Write all files under temporary names, then rename them in the given order; a full disk changes none."""
    with ExitStack() as stack:
        for path, data in reversed(files.items()):
            stack.enter_context(replacing(path)).write_bytes(data)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; a file system error raises a `UserError`."""
    write_all({path: data})


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value atomically as indented JSON."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return a value as indented JSON in UTF-8, with a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
