"""Interleaved pairs: A B B A A B …, so that a machine whose speed drifts does not favour one side."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def seconds(work: Callable[[], object]) -> float:
    """Return the wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleave(
    a: Callable[[], object], b: Callable[[], object], pairs: int, warmup: int = 2
) -> list[tuple[float, float]]:
    """Time a and b in pairs, the order of each pair alternating."""
    for _ in range(warmup):
        a(), b()
    timed = []
    for number in range(pairs):
        if number % 2:
            second, first = seconds(b), seconds(a)
        else:
            first, second = seconds(a), seconds(b)
        timed.append((first, second))
    return timed


def report(name_a: str, name_b: str, timed: list[tuple[float, float]]) -> float:
    """Print both medians and the ratio a/b pair by pair; returns its median."""
    ratios = sorted(a / b for a, b in timed)
    median = statistics.median(ratios)
    for name, times in ((name_a, [a for a, _ in timed]), (name_b, [b for _, b in timed])):
        low, middle, high = (1e3 * f(times) for f in (min, statistics.median, max))
        print(f"  {name:32s} median {middle:8.1f} ms  (min {low:.1f}, max {high:.1f})")
    spread = f"(min {ratios[0]:.4f}, max {ratios[-1]:.4f})"
    print(f"  ratio, median of {len(timed)} pairs: {median:.4f}  {spread}", flush=True)
    note(f"{name_a} / {name_b}", ratios)
    return median


# What was measured since the program began: median and quartiles of each ratio; less is better.
RATIOS: dict[str, tuple[float, float, float]] = {}


def note(name: str, ratios: Sequence[float]) -> None:
    """Keep a ratio, measured once or several times, for the machine's record; see `benchmarks.record`."""
    low, median, high = statistics.quantiles([*ratios, *ratios], n=4, method="inclusive")
    RATIOS[name] = (median, low, high)
