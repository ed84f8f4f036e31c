"""Files that are complete or absent: written under a temporary name, synced, renamed."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it replaces `path`, durably.

    Raises:
        UserError: when the file system refuses (full disk, no permission), or `path` is a device or a pipe; `path` is
            then as it was.
    """
    target = path.resolve()  # a symbolic link stays a link
    if target.exists() and not target.is_file() and not target.is_dir():
        # A rename would replace the device itself, for all users of the machine.
        raise UserError(f"{path} is a device or a pipe, which cannot be replaced; name a file")
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; "
            "free some space or choose another folder, then continue: what was there before is untouched"
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`; on success it replaces the folder `path` as a whole.

    Raises:
        UserError: when the file system refuses.
    """
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
        hidden = path.with_name(f".{path.name}.part")
        shutil.rmtree(hidden, ignore_errors=True)
        path = path.rename(hidden)
    shutil.rmtree(path, ignore_errors=True)


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
