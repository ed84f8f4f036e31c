"""Write files and folders atomically: under a temporary name, synced, then renamed.

A killed process leaves `.NAME.PROCESS@HOST.part`, which the next process on that host that writes NAME deletes.
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

# Whether a process of another host still runs is not known.
HOST = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
# How Rust names an error of the system: as safetensors and tokenizers raise it, without its number.
_OF_RUST = re.compile(r"\(os error (\d+)\)")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which on success durably replaces `path`.

    On failure `path` is unchanged. An error of the file system, or a device or pipe at `path`, raises a `UserError`.
    """
    target = Path(os.path.realpath(path))  # a symbolic link stays a link
    beside = _part(target)
    try:
        with _said(path, f"{_ELSEWHERE}, then continue; the previous content is unchanged"):
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
    """Yield an empty temporary folder, which on success durably becomes the folder `path`.

    With `replace`, the previous content of `path` is deleted; the caller must ensure that no other process writes
    there. Otherwise a `path` that is not empty, or that another process is making, raises a `UserError`. Messages name
    `shown`, if given.
    """
    shown = shown or path
    target = Path(os.path.realpath(path))
    beside, lock = _part(target), target.with_name(f".{target.name}.lock")

    def refuse(owner: str) -> None:
        raise UserError(
            f"{clip(shown)} is being written by another process ({owner}); wait for it, or choose another name"
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
            else:  # which fails, should it be filled now
                beside.rename(target)
            sync_folder(target.parent)
    except UserError as error:  # of a file in it
        raise UserError(str(error).replace(str(beside), str(shown))) from error


def _exchange(beside: Path, target: Path) -> None:
    """Replace a folder by another one, and delete the old one; `clean` repairs an interruption by a kill."""
    before = _part(target, "before.")
    target.rename(before)
    try:
        beside.rename(target)
    except OSError:
        before.rename(target)
        raise
    discard(before)


_ELSEWHERE = "free some space or choose another folder"


@contextmanager
def _said(path: Path, remedy: str) -> Iterator[None]:
    """Raise a `UserError` for errors of the file system, including those that a library rephrases."""
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
    """Return the mode that Python gives new files, probed in a folder where one can be created."""
    beside.touch()
    mode = beside.stat().st_mode
    beside.unlink()
    return mode


def _settle(path: Path, mode: int) -> None:
    """Make written files durable, with the usual permissions, which some libraries restrict."""
    if path.is_dir():
        sync_folder(path)
    else:
        path.chmod(mode)
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def check_name(path: Path) -> None:
    """Raise a `UserError` if the name of a folder is not UTF-8, because libraries that save models need UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{clip(path)}: the name is not UTF-8; choose another one") from None


def discard(path: Path) -> None:
    """Delete a file or a folder, after renaming it, so that a half-deleted folder is never found."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.endswith(".part"):
        path = path.rename(_part(path, "old."))
    shutil.rmtree(path, ignore_errors=True)


def clean(folder: Path, name: str | None = None) -> None:
    """Remove unfinished files of killed processes from a folder, those of `name` or all.

    A file that was moved away, but not yet replaced, is restored.
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
    """Return whether another process has this id; this process never has unfinished files when it cleans."""
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
    """Write files atomically, in this order, and only once there is space for all."""
    with ExitStack() as stack:
        for path, data in reversed(files.items()):
            stack.enter_context(replacing(path)).write_bytes(data)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    write_all({path: data})


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented for reading."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return JSON, indented for reading."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
