"""Functions that run a model and return the results of an evaluation, such as `likelihood.evaluate_run`.

This module does not import torch, so that the components in this package, such as judges, load without it.
"""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

T = TypeVar("T")

# Called with the number of completed sequences, texts or tokens and their total; a stage's name precedes them.
Progress = Callable[[int, int], None] | None
StageProgress = Callable[[str, int, int], None] | None


def batches(total: int, size: int, progress: Progress = None) -> Iterator[slice]:
    """Yield slices of at most `size` rows that cover `total` rows, and report progress after each slice."""
    for first in range(0, total, size):
        last = min(first + size, total)
        yield slice(first, last)
        if progress:
            progress(last, total)


def track_progress(items: Collection[T], progress: Progress, size: int = 1) -> Iterator[T]:
    """Yield the items, and report progress before each item and at the end; each item counts as `size` units."""
    for number, item in enumerate(items):
        if progress:
            progress(number * size, len(items) * size)
        yield item
    if progress:
        progress(len(items) * size, len(items) * size)


def progress_of_part(progress: Progress, before: int, total: int) -> Progress:
    """Return a progress function for a part that begins after `before` of `total` units; None without `progress`."""
    return progress and (lambda done, _: progress(before + done, total))
