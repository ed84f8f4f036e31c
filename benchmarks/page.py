"""The report of a run with 10,000 lines: at most 5 s of processor time, and every control responds within 1 s."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.pairs import hold, note, seconds
from tests.reports.browser import chromium
from tests.reports.run_folders import make

LINES, WRITTEN, ANSWERS = 10_000, 5.0, 1.0  # seconds


def main() -> None:
    """Print medians of five: processor time of `atat report`, and time in the browser until every control responds."""
    with tempfile.TemporaryDirectory() as folder:
        run = make(Path(folder) / "run", lines=LINES)
        words = [sys.executable, "-m", "atat_zoo", "report", str(run)]

        def write() -> None:
            subprocess.run(words, check=True, capture_output=True)

        written = [seconds(write, processor) for _ in range(5)]
        bars = [shown("seconds of atat report / 5", written, WRITTEN)]
        try:
            with chromium() as browser:
                answers = [answering(browser, run / "report.html") for _ in range(6)][1:]
                bars.append(shown("seconds until the page answers / 1", answers, ANSWERS))
        except pytest.skip.Exception as skipped:  # the tests' browser fixture skips if no browser is installed
            print(f"  the page itself: {skipped}")
    hold(bars)


def processor() -> float:
    """Return the processor seconds of the ended child processes of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def answering(browser, path: Path) -> float:
    """Return the seconds from the start of the navigation until every control responds."""
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    ready = float(page.evaluate("document.documentElement.dataset.ready"))
    page.close()
    return ready / 1000


def shown(name: str, times: list[float], bar: float) -> tuple[str, float, float]:
    """Print the times, and return their median relative to the limit."""
    median = statistics.median(times)
    print(
        f"  {name.partition(' /')[0]:34s} median {median:.3f} s  (min {min(times):.3f}, max {max(times):.3f})",
        flush=True,
    )
    note(name, [each / bar for each in times])
    return name, median / bar, 1.0


if __name__ == "__main__":
    main()
