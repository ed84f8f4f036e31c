"""Ways to damage a file."""

import hashlib
import json
import os
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

SHAPES = (
    *(b"", b" ", b"null", b"5", b'"x"', b"[]", b"{}", b"[[]]", b'{"format": 1}', b'{"step": -1}', b"[1, 2"),
    *(b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"NaN", b"[tokenizer]", b"x = 1", b"\0" * 4096),
    b"\xef\xbb\xbf{}",
)
NUMBERS = (
    *(b"-1", b"0", b"1099511627776", b"9" * 30, b"9" * 5000, b"1e999", b"NaN", b"-Infinity", b"0.5", b'"5"', b"null"),
)


def truncated(draw, data):
    return data[: draw.randrange(len(data) + 1)]


def flipped(draw, data):
    """Flip one bit to eight of them; in the first bytes, where the headers are, as often as elsewhere."""
    if not data:
        return data
    changed = bytearray(data)
    reach = min(len(data), draw.choice((16, 600, len(data))))
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(reach)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def zeroed(draw, data):
    """Fill a stretch with zeros, or with ones, which are no number in a file of weights."""
    start, size = draw.randrange(max(len(data), 1)), draw.choice((1, 64, 4096))
    return data[:start] + draw.choice((b"\0", b"\0", b"\xff")) * len(data[start : start + size]) + data[start + size :]


def inserted(draw, data):
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes(draw.randrange(256) for _ in range(draw.choice((1, 7, 512)))) + data[at:]


def doubled(draw, data):
    return data * 2


def garbage(draw, data):
    return draw.randbytes(draw.choice((1, 100, 10_000)))


def shaped(draw, data):
    return draw.choice(SHAPES)


def nines(draw, data):
    """Let a number that stands in a header as text claim the most that its digits can."""
    digits = list(re.finditer(rb"\d+", data[:4096]))
    if not digits:
        return flipped(draw, data)
    found = draw.choice(digits)
    return data[: found.start()] + b"9" * len(found.group()) + data[found.end() :]


def numbered(draw, data):
    digits = list(re.finditer(rb"(?<![\w.])-?\d[\d.e+-]*", data))
    if not digits:
        return shaped(draw, data)
    found = draw.choice(digits)
    return data[: found.start()] + draw.choice(NUMBERS) + data[found.end() :]


def reshaped(draw, data):
    """Remove a key of JSON, or put a value of another type in its place."""
    try:
        table: Any = json.loads(data)
    except (ValueError, RecursionError):
        return shaped(draw, data)
    place = table
    while isinstance(place, dict | list) and place:
        key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.3:
            if draw.random() < 0.4:
                del place[key]
            else:
                place[key] = draw.choice((None, 5, -1, 2**40, 1e300, "x", [], {}, [[]], True, "../../x", "9" * 5000))
            break
        place = place[key]
    return json.dumps(table).encode()


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(truncated, flipped, flipped, zeroed, inserted, doubled, garbage, shaped),
    *(nines, nines, numbered, numbered, reshaped, reshaped),
)
OTHERS = ("delete", "swap", "folder", "dangling link", "link to itself", "pickle")


class Planted:
    """Loaded as a pickle, it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def damage(draw, path, others, mark):
    """Damage a file, by a change of its bytes or in another way; returns how."""
    data = path.read_bytes()
    if draw.random() < 0.75:
        change = draw.choice(CHANGES)
        path.write_bytes(change(draw, data or b"\0"))
        return change.__name__
    how = draw.choice(OTHERS)
    if how == "swap":
        other = draw.choice(others)
        path.write_bytes(other.read_bytes())
        return f"as {other.name}"
    if how == "pickle":
        path.write_bytes(pickle.dumps(Planted(str(mark))))
        return how
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "dangling link":
        path.symlink_to("nowhere")
    elif how == "link to itself":
        path.symlink_to(path.name)
    return how


def forge(path, before):
    """Let the notes beside a file say its new hash and size; returns whether any spoke of it."""
    if not path.is_file():
        return False
    old, new = (hashlib.sha256(data).hexdigest() for data in (before, path.read_bytes()))
    forged = False
    for note in (*path.parent.glob("*.json"), *path.parent.parent.glob("*.json")):
        with_old = note.read_text(errors="replace") if note.is_file() and note != path else ""
        if old in with_old:
            size = rf'("bytes": ){len(before)}(,\s*"sha256": "{old}")'
            text = re.sub(size, rf"\g<1>{path.stat().st_size}\2", with_old)
            note.write_text(text.replace(old, new))
            forged = True
    return forged
