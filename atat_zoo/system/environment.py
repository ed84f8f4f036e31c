"""The environment of a run: versions, git state and hardware.

This module does not import the packages whose versions it reports.
"""

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("atat-zoo", "torch", "mosaicml", "numpy", "webdataset", "torchmetrics", "tokenizers", "safetensors")


def describe(plugins: list[Any]) -> dict[str, Any]:
    """Return the command, versions, git state and hardware of this process, given `plugins` from `Zoo.plugins`."""
    return {
        # An argument may contain bytes that are not UTF-8, which JSON cannot store.
        "command": [word.encode(errors="backslashreplace").decode() for word in sys.argv],
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "plugins": {p.name: f"{p.distribution} {p.version} ({p.status})" for p in plugins},
        "git": _git(),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Return the operating system, the processor, the number of cores and the value of OMP_NUM_THREADS."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _version(name: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(name)
    return None


def processor() -> str:
    """Return the name of the processor, which on Linux is read from /proc/cpuinfo."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _git() -> dict[str, Any] | None:
    # The current repository may have been configured by anyone, and some of its keys name commands. This includes the
    # keys of filters, which have arbitrary names and are therefore emptied one by one. Nothing is fetched.
    safe = ["-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
    env = {**os.environ, "GIT_ALLOW_PROTOCOL": ""}

    def run(*words: str) -> str:
        # A `git status` that refreshes the index locks it, and would leave the lock behind after a timeout.
        call = ["git", "--no-optional-locks", *safe, *words]
        how: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "env": env}
        return subprocess.run(call, capture_output=True, check=True, timeout=10, **how).stdout.strip()

    with suppress(OSError, ValueError, subprocess.SubprocessError):
        for key in run("config", "--list", "--null", "--name-only").split("\0"):
            if key.startswith("filter."):
                if "=" in key:  # git would mistake it for the end of the key
                    return None
                safe += ["-c", f"{key}="]
        # In a submodule, git would use the configuration that it finds there.
        changed = run("status", "--porcelain", "--ignore-submodules=dirty", "--no-renames")
        return {"commit": run("rev-parse", "HEAD"), "changed": bool(changed)}
    return None
