"""Timing in interleaved pairs, A B B A A B …, so that a drift in the machine's speed does not favour one side.

The module also measures memory, in a separate process.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def options(**defaults: Any) -> argparse.Namespace:
    """Return the command-line values of these options, or their defaults."""
    parser = argparse.ArgumentParser()
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_known_args()[0]


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call according to a clock, by default wall-clock time."""
    start = clock()
    work()
    return clock() - start


def interleave(
    a: Callable[[], object],
    b: Callable[[], object],
    pairs: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[float, float]]:
    """Time a and b in pairs, and alternate the order within the pairs.

    If other programs use the cores, `time.process_time` with one thread measures only the time of each side.
    """
    for _ in range(warmup):
        a(), b()
    timed = []
    for number in range(pairs):
        if number % 2:
            second, first = seconds(b, clock), seconds(a, clock)
        else:
            first, second = seconds(a, clock), seconds(b, clock)
        timed.append((first, second))
    return timed


def alone(function: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a function that runs in a separate process with its own memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def resident(peak: bool = False) -> int:
    """Return the bytes of this process in memory, or their peak since `forget_peak`; Linux only.

    `getrusage` would include the memory of the parent process.
    """
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def forget_peak() -> None:
    """Reset the peak to the current memory."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def release_freed_memory() -> None:
    """Return memory that this process has freed to the system; needs glibc."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def report(name_a: str, name_b: str, timed: list[tuple[float, float]]) -> float:
    """Print both medians and the ratio a/b over pairs; return the median ratio."""
    ratios = sorted(a / b for a, b in timed)
    median = statistics.median(ratios)
    for name, times in ((name_a, [a for a, _ in timed]), (name_b, [b for _, b in timed])):
        low, middle, high = (1e3 * f(times) for f in (min, statistics.median, max))
        print(f"  {name:32s} median {middle:8.1f} ms  (min {low:.1f}, max {high:.1f})")
    spread = f"(min {ratios[0]:.4f}, max {ratios[-1]:.4f})"
    print(f"  ratio, median of {len(timed)} pairs: {median:.4f}  {spread}", flush=True)
    note(f"{name_a} / {name_b}", ratios)
    return median


# Results since the program started: median and quartiles of each ratio; lower is better.
RATIOS: dict[str, tuple[float, float, float]] = {}


def quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the lower and the upper quartile."""
    low, median, high = statistics.quantiles([*ratios, *ratios], n=4, method="inclusive")
    return median, low, high


def note(name: str, ratios: Sequence[float]) -> None:
    """Save a ratio that was measured once or more for the machine's record; see `benchmarks.record`."""
    RATIOS[name] = quartiles(ratios)


def hold(bars: Sequence[tuple[str, float, float]]) -> None:
    """Exit with a message if any named ratio exceeds its limit or is NaN; a benchmark calls this last."""
    missed = [f"{name} is {ratio:.4f}, and the limit is {bar}" for name, ratio, bar in bars if not ratio <= bar]
    if missed:
        raise SystemExit("; ".join(missed))
