"""Response time of the command line: `atat zoo list` in a pipe and on a terminal, `atat check` on a bad file."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pairs import seconds


def main() -> None:
    """Print the median of ten calls of each command."""
    atat = Path(sys.executable).with_name("atat")
    command = str(atat) if atat.exists() else shutil.which("atat")
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad.toml"
        bad.write_text('[masking]\nuse = "importence"\n')
        piped = [command, "zoo", "list"]
        calls = {"atat zoo list, in a pipe": piped, "atat check, on a bad file": [command, "check", str(bad)]}
        if shutil.which("script"):
            calls["atat zoo list, on a terminal"] = ["script", "-qec", " ".join(piped), "/dev/null"]
        for name, words in calls.items():
            times = [seconds(lambda words=words: subprocess.run(words, capture_output=True)) for _ in range(11)][1:]
            print(f"  {name:32s} median {statistics.median(times):.3f} s  (min {min(times):.3f}, max {max(times):.3f})")


if __name__ == "__main__":
    main()
