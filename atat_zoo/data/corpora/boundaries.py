"""Boundaries: where in a file of plain text a document ends and the next begins.

A document is held out as a whole, and is packed with an end of its own, so what counts as one changes the splits and
the sequences. No document may be longer than memory allows: `most` characters.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise
from typing import IO, Protocol

from typing_extensions import override

from atat_zoo.registry import component


class Boundary(Protocol):
    """A component of the kind boundary."""

    name: str

    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        """Yield the documents of a file in their order; empty ones are skipped by the corpus.

        Raises:
            MemoryError: for a document of more than `most` characters.
        """


def up_to(most: int, read: Callable[[int], str]) -> str:
    """Return what `read` returns of a file; raise a `MemoryError` if there is more."""
    text = read(most + 1)
    if len(text) > most:
        raise MemoryError
    return text


def lines(file: IO[str], most: int) -> Iterator[str]:
    """Yield lines of at most so many characters; raise a `MemoryError` for a longer one."""
    return iter(partial(up_to, most, file.readline), "")


@component
class FileBoundary(Boundary):
    """Each file is one document, read at once."""

    name = "file"
    summary = "one document per file"

    @override
    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        yield up_to(most, file.read)


@component
class LineBoundary(Boundary):
    """Each line is a document, without its line end: One Billion Words, Penn Treebank."""

    name = "line"
    summary = "one document per line"

    @override
    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        for line in lines(file, most):
            yield line.rstrip("\n")


@component
class ParagraphBoundary(Boundary):
    """Lines up to an empty one are a document."""

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
    """An article of WikiText is a document: it begins with a line ` = Title = ` between empty ones.

    Sections have more signs at either end; a line like that in a table or a formula stands among others. By
    this rule WikiText-2 has the 600, 60 and 60 articles that it is said to have.
    """

    name = "heading"
    summary = "one document per article, which starts with a line ` = Title = ` as in WikiText"
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
