"""Boundaries, which determine where each document in a plain-text file ends.

Documents are held out as a whole and packed with separators, so the boundary affects splits and sequences. A document
may have at most `most` characters, a limit determined by the available memory.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise
from typing import IO, Protocol

from typing_extensions import override

from atat_zoo.registry import component


class Boundary(Protocol):
    """The base class of boundaries."""

    name: str

    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        """Yield the documents of a file in order; the corpus skips empty ones.

        Raises:
            MemoryError: if a document has more than `most` characters.
        """


def up_to(most: int, read: Callable[[int], str]) -> str:
    """Return the text that `read(most + 1)` returns; raise a `MemoryError` if it has more than `most` characters."""
    text = read(most + 1)
    if len(text) > most:
        raise MemoryError
    return text


def lines(file: IO[str], most: int) -> Iterator[str]:
    """Yield the lines of a file; raise a `MemoryError` if a line has more than `most` characters."""
    return iter(partial(up_to, most, file.readline), "")


@component
class FileBoundary(Boundary):
    """Treats each file as one document, which is read at once."""

    name = "file"
    summary = "one document per file"

    @override
    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        yield up_to(most, file.read)


@component
class LineBoundary(Boundary):
    """Treats each line as a document, without its newline, as in One Billion Words and Penn Treebank."""

    name = "line"
    summary = "one document per line"

    @override
    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        for line in lines(file, most):
            yield line.rstrip("\n")


@component
class ParagraphBoundary(Boundary):
    """Treats each paragraph, up to an empty line, as a document."""

    name = "paragraph"
    summary = "one document per paragraph; paragraphs are separated by empty lines"

    @override
    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        waiting: list[str] = []
        size = 0
        for line in lines(file, most):
            if line.strip():
                waiting.append(line)
                size += len(line)
                if size > most:
                    raise MemoryError
            elif waiting:
                yield "".join(waiting).rstrip("\n")
                waiting, size = [], 0
        yield "".join(waiting).rstrip("\n")


@component
class HeadingBoundary(Boundary):
    """Treats each WikiText article as a document, which starts with a line ` = Title = ` between empty lines.

    Section headings have more equals signs, and similar lines in tables and formulas are not surrounded by empty lines.
    With this rule, WikiText-2 has its documented 600, 60 and 60 articles.
    """

    name = "heading"
    summary = "one document per article, which starts with a line ` = Title = `, as in WikiText"
    refs = ("arXiv:1609.07843",)

    @override
    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        waiting: list[str] = []
        size = 0
        for line, after in pairwise(chain(lines(file, most), [""])):
            title = _TITLE.fullmatch(line) is not None
            if waiting and title and not waiting[-1].strip() and not after.strip():
                yield "".join(waiting)
                waiting, size = [], 0
            waiting.append(line)
            size += len(line)
            if size > most:
                raise MemoryError
        yield "".join(waiting)


_TITLE = re.compile(r"\s*= (?!=)[^\n]*(?<!=) =\s*")
