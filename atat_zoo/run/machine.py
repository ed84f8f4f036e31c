"""The memory of this machine, so that a size that cannot fit is refused by a sentence, before it is asked for."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from atat_zoo.errors import UserError

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """Return the memory that this process may use, in bytes: the machine's, or a container's or `ulimit -v`'s share."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUPS:
        with suppress(OSError, ValueError):  # without a limit it says "max"
            sizes.append(int(Path(path).read_text()))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(sizes if limit == resource.RLIM_INFINITY else [*sizes, limit])


def require(size: int, what: str, remedy: str) -> None:
    """Raise a `UserError` if this machine does not have `size` bytes for `what`."""
    there = memory()
    if size > there:
        raise UserError(f"{what} needs about {size / 1e9:,.1f} GB and this machine has {there / 1e9:,.1f} GB; {remedy}")
