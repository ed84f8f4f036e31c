"""Python source by Python's own `tokenize` and `ast`: classes of characters and tokens, and lines of code.

A document has C characters, which are B bytes in UTF-8, and T tokens of a model's tokenizer.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
import warnings
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CLASSES = ("keywords", "identifiers", "operators", "numbers", "strings", "comments", "white space")
KEYWORD, IDENTIFIER, OPERATOR, NUMBER, STRING, COMMENT, SPACE = range(len(CLASSES))


class Span(NamedTuple):
    """A range of characters, from `begin` to before `end`."""

    begin: int
    end: int


def parses(text: str) -> bool:
    """Return whether `ast.parse` accepts the text."""
    try:
        with warnings.catch_warnings():  # of an invalid escape or a comparison by identity, for example
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def character_classes(text: str) -> NDArray[np.int64]:
    """Return the class of each character of a text that parses, int64 [C], as an index into `CLASSES`.

    Operators include delimiters such as brackets, identifiers include soft keywords such as `match`, and strings
    include docstrings. White space is everything between tokens.
    """
    found = np.full(len(text), SPACE)
    for span, kind, _ in _tokens(text):
        found[slice(*span)] = kind
    return found


def code_lines(text: str) -> list[Span]:
    """Return the indented lines of code of a text that parses, each from the line end before it to before its own.

    A line has more than strings and comments, belongs to no string over several lines, and follows a line that is not
    blank. So its first character is the line end, and its indentation follows.
    """
    lines = text.split("\n")
    code, inside = set[int](), set[int]()
    for _, kind, (first, last) in _tokens(text):
        if kind not in (STRING, COMMENT):
            code.add(first)
        elif last > first:
            inside.update(range(first, last + 1))
    ends = list(accumulate(len(line) + 1 for line in lines))
    return [
        Span(ends[row - 1] - 1, ends[row] - 1)
        for row in sorted(code - inside)
        if row and lines[row][0].isspace() and lines[row - 1].strip()
    ]


def _tokens(text: str) -> Iterator[tuple[Span, int, tuple[int, int]]]:
    """Yield the characters, the class, and the first and last line (from 0) of each token of Python."""
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "NAME":
            kind = KEYWORD if keyword.iskeyword(token.string) else IDENTIFIER
        elif "STRING" in name:  # an f-string has several tokens from Python 3.12 on
            kind = STRING
        elif name in ("OP", "NUMBER", "COMMENT"):
            kind = {"OP": OPERATOR, "NUMBER": NUMBER, "COMMENT": COMMENT}[name]
        else:
            continue
        (first, begin), (last, end) = token.start, token.end
        yield Span(starts[first - 1] + begin, starts[last - 1] + end), kind, (first - 1, last - 1)


def byte_offsets(text: str) -> NDArray[np.int64]:
    """Return where each character begins in UTF-8, and the number of bytes, int64 [C + 1]."""
    code = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + sum((code >= least).astype(np.int64) for least in (0x80, 0x800, 0x10000))
    return np.concatenate([[0], np.cumsum(sizes)])


def token_classes(text: str, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class of each token, int64 [T]: that of the first character in it that is not white space.

    `ends` are the tokens' last bytes plus one, int64 [T]. A character belongs to the token with its first byte; a token
    without any visible one is white space.
    """
    classes = character_classes(text)
    seen = np.flatnonzero(classes != SPACE)
    where = np.append(byte_offsets(text)[seen], ends[-1] if len(ends) else 0)
    nearest = np.searchsorted(where, np.concatenate([[0], ends[:-1]]))
    return np.where(where[nearest] < ends, np.append(classes[seen], SPACE)[nearest], SPACE)


def token_span(span: Span, offsets: NDArray[np.int64], ends: NDArray[np.int64]) -> Span | None:
    """Return the tokens that are exactly the characters of a span, or None if a token crosses one of its ends."""
    first, last = (int(offsets[each]) for each in span)
    begin, end = (int(np.searchsorted(ends, each, side="right")) for each in (first, last))
    for at, byte in ((begin, first), (end, last)):
        if byte and ends[at - 1] != byte:
            return None
    return Span(begin, end)
