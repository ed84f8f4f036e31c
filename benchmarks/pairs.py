"""Interleaved pairs: A B B A A B …, so that a machine whose speed drifts does not favour one side.

And the memory of something in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def options(**defaults: Any) -> argparse.Namespace:
    """Return what the command line asks for under these names, or the defaults."""
    parser = argparse.ArgumentParser()
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_known_args()[0]


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call, wall-clock unless the clock is another one."""
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
    """Time a and b in pairs, the order of each pair alternating.

    Where other programs take the cores, `time.process_time` with one thread counts what each side itself needs.
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
    """Return what a function returns in a process of its own, whose memory is its own, too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def resident(peak: bool = False) -> int:
    """Return the bytes of this process that are in memory, or the most since `forget_peak`; Linux only.

    `getrusage` would count what the process that started this one has had.
    """
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def forget_peak() -> None:
    """Let the peak begin again at what is in memory now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


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


def quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return median, lower and upper quartile."""
    low, median, high = statistics.quantiles([*ratios, *ratios], n=4, method="inclusive")
    return median, low, high


def note(name: str, ratios: Sequence[float]) -> None:
    """Keep a ratio, measured once or several times, for the machine's record; see `benchmarks.record`."""
    RATIOS[name] = quartiles(ratios)


def hold(bars: Sequence[tuple[str, float, float]]) -> None:
    """Exit with a sentence if any ratio, by name, is not at most its bar; the last thing that a benchmark does."""
    missed = [f"{name} is {ratio:.4f}, the bar {bar}" for name, ratio, bar in bars if not ratio <= bar]
    if missed:
        raise SystemExit("; ".join(missed))
