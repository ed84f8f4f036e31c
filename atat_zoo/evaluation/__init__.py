"""Evaluation functions, which run a model and return its results: `measure(model, text, …) -> RunResult`.

This module does not import torch, because the package also contains the components of the kind judge.
"""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

T = TypeVar("T")

# Called with the completed and total number of sequences, texts or tokens, preceded by the stage's name if any.
Progress = Callable[[int, int], None] | None
StageProgress = Callable[[str, int, int], None] | None


def batches(total: int, size: int, progress: Progress = None) -> Iterator[slice]:
    """Yield the slice of rows for each batch, and report progress after each batch."""
    for first in range(0, total, size):
        last = min(first + size, total)
        yield slice(first, last)
        if progress:
            progress(last, total)


def track_progress(items: Collection[T], progress: Progress, size: int = 1) -> Iterator[T]:
    """Yield the items, and report progress in units of `size` before each item and at the end."""
    for number, item in enumerate(items):
        if progress:
            progress(number * size, len(items) * size)
        yield item
    if progress:
        progress(len(items) * size, len(items) * size)


def progress_of_part(progress: Progress, before: int, total: int) -> Progress:
    """Return a progress function for a part of `total` that starts after the first `before` units."""
    return progress and (lambda done, _: progress(before + done, total))
