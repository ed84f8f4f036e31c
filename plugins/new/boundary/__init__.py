"""A boundary that divides a file into documents at unindented lines."""

from __future__ import annotations

from functools import partial
from typing import IO, TYPE_CHECKING

from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderBoundary:
    """Starts a document at each line without leading white space, for example at each entry of a dictionary."""

    name = "placeholder"
    summary = "one document per unindented line and the indented lines after it"
    refs = ()

    def documents(self, file: IO[str], most: int) -> Iterator[str]:
        """Yield the documents of a file, and raise a `MemoryError` at one with more than `most` characters."""
        waiting: list[str] = []
        size = 0
        for line in iter(partial(file.readline, most + 1), ""):
            if waiting and not line[0].isspace():
                yield "".join(waiting)
                waiting, size = [], 0
            waiting.append(line)
            size += len(line)
            if size > most:
                raise MemoryError
        yield "".join(waiting)


@hookimpl
def atat_zoo_boundary() -> list[type]:
    """Return the boundaries in this package."""
    return [PlaceholderBoundary]
