"""Files that are complete or absent: written under a temporary name, synced, renamed."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from atat_zoo.errors import UserError, clip


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it replaces `path`, durably.

    Otherwise `path` stays as it was; what the file system refuses, and a device or a pipe, is a `UserError`.
    """
    target = Path(os.path.realpath(path))  # a symbolic link stays a link
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.exists() and not target.is_file() and not target.is_dir():
            # A rename would replace the device itself, for all users of the machine.
            raise UserError(f"{path} is a device or a pipe, which cannot be replaced; name a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Some libraries let nobody else read what they write: take the mode of a file that Python makes.
        beside.touch()
        mode = beside.stat().st_mode
        beside.unlink()
        yield beside
        beside.chmod(mode)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UserError(
            f"{clip(path)} cannot be written: {error.strerror or error}; "
            "free some space or choose another folder, then continue: what was there before is untouched"
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`; on success it replaces the folder `path` as a whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.mkdir(parents=True, exist_ok=True)
        yield beside
        if path.exists():
            discard(path)
        beside.rename(path)
        sync_folder(path.parent)
    except UserError as error:  # of a file in it
        raise UserError(str(error).replace(str(beside), str(path))) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def discard(path: Path) -> None:
    """Delete a file, or a folder: it loses its name before its files are deleted, so half of it is never found."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith("."):
        path = path.rename(path.with_name(f".{path.name}.old.{os.getpid()}.part"))
    shutil.rmtree(path, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove the unfinished files and folders in a folder whose processes were killed."""
    for part in folder.glob(".*.part"):
        process = part.name.split(".")[-2]
        if process.isdecimal() and not _running(int(process)):
            with suppress(OSError):
                discard(part)


def _running(process: int) -> bool:
    """Return whether another process of that number runs; ours writes nothing when it cleans."""
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


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as beside:
        beside.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented for reading."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
