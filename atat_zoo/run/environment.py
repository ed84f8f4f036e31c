"""Where a run happened: versions, git state and hardware, without importing what it names."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("atat-zoo", "torch", "mosaicml", "numpy", "webdataset", "torchmetrics", "tokenizers", "safetensors")


def describe(plugins: list[Any]) -> dict[str, Any]:
    """Return what one must know to read the run's numbers.

    Args:
        plugins: the installed plugins, as `Zoo.plugins` has them.
    """
    return {
        # An argument may hold bytes that are no UTF-8, which JSON could not.
        "command": [word.encode(errors="backslashreplace").decode() for word in sys.argv],
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "plugins": {p.name: f"{p.distribution} {p.version} ({p.status})" for p in plugins},
        "git": _git(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _git() -> dict[str, Any] | None:
    def run(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": run("rev-parse", "HEAD"), "changed": bool(run("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
