"""Response time of the command line: `atat zoo list`, `atat check` and, with --run RUN, commands on a trained run."""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pairs import options, seconds


def main() -> None:
    """Print the median time of each command, and that of a command which only imports torch, to compare with."""
    run = options(run="runs/quickstart").run
    atat = Path(sys.executable).with_name("atat")
    command = str(atat) if atat.exists() else shutil.which("atat")
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad.toml"
        bad.write_text('[masking]\nuse = "importence"\n')
        piped = [command, "zoo", "list"]
        calls = {"atat zoo list, in a pipe": piped, "atat check, on a bad file": [command, "check", str(bad)]}
        if shutil.which("script"):
            calls["atat zoo list, on a terminal"] = ["script", "-qec", " ".join(piped), "/dev/null"]
        if (Path(run) / "model").exists():
            calls["python -c 'import torch'"] = [sys.executable, "-c", "import torch"]
            calls["atat sample"] = [command, "sample", run]
            calls["atat infill"] = [command, "infill", run, "The [MASK:3] of"]
            calls["atat compare, two runs"] = [command, "compare", run, run, "--sequences", "8"]
            calls["atat report"] = [command, "report", run, "--out", f"{folder}/report.html"]
        for name, words in calls.items():
            # The first call may read files from the disk that the others find in memory.
            found = [_timed(words) for _ in range(5 if run in words else 11)][1:]
            wall, cpu = map(statistics.median, zip(*found, strict=True))
            print(f"  {name:28s} median {wall:.3f} s (min {min(found)[0]:.3f}), {cpu:.3f} s of processor time")


def _timed(words: list[str]) -> tuple[float, float]:
    """Return the wall-clock and the processor seconds of a command."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    wall = seconds(lambda: subprocess.run(words, capture_output=True, check=False))
    return wall, used() - before


if __name__ == "__main__":
    main()
