"""Regular files; TOML and JSON as plain values, or a `ValueError` whose text is the reason. Imports no torch."""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from pathlib import Path

# An experiment nests its parts less than ten deep. The functions that merge and check tables call themselves for each.
_DEEPEST = 64
# Bits of an integer. What is wrong with a longer one could not be said: Python refuses to print it.
_LONGEST = 4096
_LARGEST = 1 << 30  # bytes of a file that is read at once: the metrics of a million lines have fewer


def opened(path: Path) -> BufferedReader:
    """Open a regular file to read: nobody may ever write to a pipe, and some devices never end.

    Raises:
        OSError: also when it is none.
    """
    # Without waiting, and asked when it is open: until then, the name may come to mean another file.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a device or a pipe")
    return file


def read(path: Path) -> bytes:
    """Return what a regular file holds. Whatever lies in a run folder is read by this function, or from `opened`.

    Raises:
        OSError: also when it is another kind of file, or larger than any that is read at once.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {_LARGEST >> 20} MiB")
        return file.read(size)


def from_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML document.

    Raises:
        ValueError: when it is no TOML, nested too deeply, or has a number that is too long.
    """
    table: dict[str, Any] = _checked(tomllib.loads, text)
    return table


def from_json(data: bytes) -> Any:
    """Return the value of a JSON document in UTF-8.

    Raises:
        ValueError: as `from_toml`.
    """
    return _checked(json.loads, data.decode("utf-8"))


def _checked(read: Callable[[str], Any], text: str) -> Any:
    try:
        value = read(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    check(value)
    return value


def value_of(text: str) -> Any:
    """Return the one TOML value that a text consists of.

    Raises:
        ValueError: when it is none.
        TrailingInput: when something follows the value that TOML ignores or takes for another key.
    """
    document = from_toml(f"x = {text}")
    try:
        # Here a comment takes the bracket with it, and a second key is no element.
        alone = from_toml(f"x = [{text}]")
    except ValueError:
        alone = {}
    if len(document) != 1 or len(alone.get("x", ())) != 1:
        raise TrailingInput
    return document["x"]


class TrailingInput(Exception):
    """A value is followed by a comment or by another key."""


def check(value: Any) -> None:
    """Raise a `ValueError` when a value is nested too deeply or has an integer that is too long."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        if any(isinstance(each, int) and each.bit_length() > _LONGEST for each in level):
            raise ValueError(f"it has a number of more than {_LONGEST} bits")
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
