"""Memory of a training on a CPU: freed blocks are kept, not returned to the system and faulted in again."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from a heap that it keeps; says whether it did.

    A step allocates and frees the same large tensors again and again. By default
    each is mapped afresh, and the page faults cost up to a third of a step
    (compare `python -m benchmarks importance_overhead` with and without `--default-memory`).
    Does nothing where the allocator is another one.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**28))
    taken = [mallopt(parameter, value) == 1 for parameter, value in settings]
    return all(taken)
