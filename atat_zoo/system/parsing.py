"""Read regular files, parse TOML and JSON into plain values, and reject half surrogate pairs.

A parse error is a `ValueError` whose text states the reason.
"""

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from atat_zoo.system.errors import UserError

# An experiment has fewer than ten levels. The functions that merge and check tables recurse into each of them.
_DEEPEST = 64
# Bits of an integer. An error message could not show a longer integer, because Python refuses to print it.
_LONGEST = 4096
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_LARGEST = 1 << 30  # bytes of a file that is read at once; a million lines of metrics take fewer


def opened(path: Path) -> BufferedReader:
    """Open a regular file for reading; raise an `OSError` for pipes, which may block, and endless devices."""
    # Opened without waiting and then checked, because the name may refer to a different file in the meantime.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a device or a pipe")
    return file


def read(path: Path) -> bytes:
    """Return the content of a regular file; raise an `OSError` if it is larger than 1 GiB or not a regular file.

    All files in a run folder are read with this function or `opened`.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {_LARGEST >> 20} MiB")
        return file.read(size)


def from_toml(text: str) -> dict[str, Any]:
    """Return the table in a TOML document; raise a `ValueError` if it is invalid, too deep or has a huge number."""
    return _checked(tomllib.loads, text.removeprefix("\ufeff"))  # byte order mark


def from_json(data: bytes) -> Any:
    """Return the value in a UTF-8 JSON document; raise a `ValueError` as in `from_toml` or for half surrogate pairs."""
    value = _checked(json.loads, data.decode("utf-8"))
    if _SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # it could not be written to a file
            raise ValueError("it contains half a surrogate pair, which is not a character") from None
    return value


def refuse_halves(text: str, where: str) -> None:
    """Raise a `UserError` if a text, called `where`, contains half a surrogate pair, as truncated JSON may."""
    if half := _HALF.search(text):
        said = f"{where} has an unpaired surrogate, {half[0]!r}, at character {half.start()}, so it is not valid text"
        raise UserError(f"{said}; remove it, or replace it with U+FFFD")


def _checked(read: Callable[[str], Any], text: str) -> Any:
    try:
        value = read(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep") from None
    check(value)
    return value


def value_of(text: str) -> Any:
    """Return the TOML value in a text; raise `TrailingInput` if more follows, or a `ValueError` if it is invalid."""
    document = from_toml(f"x = {text}")
    try:
        # Here a comment would include the closing bracket, and a second key is not an element.
        alone = from_toml(f"x = [{text}]")
    except ValueError:
        alone = {}
    if len(document) != 1 or len(alone.get("x", ())) != 1:
        raise TrailingInput
    return document["x"]


class TrailingInput(Exception):
    """Raised when a value is followed by a comment or by another key."""


def check(value: Any) -> None:
    """Raise a `ValueError` if a value has more than 64 levels or contains an integer of more than 4,096 bits."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        if any(isinstance(item, int) and item.bit_length() > _LONGEST for item in level):
            raise ValueError(f"it contains an integer of more than {_LONGEST} bits")
        tables = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for table in tables for item in table]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
