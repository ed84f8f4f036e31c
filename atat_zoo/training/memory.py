"""Memory of a training: its peak, and an allocator that reuses freed blocks on a CPU."""

from __future__ import annotations

import ctypes
import resource
import sys

import torch

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory for large blocks; returns whether it does, False for other allocators.

    A step allocates and frees the same large tensors again and again. By default glibc maps each anew, and the page
    faults cost up to a third of a step (`python -m benchmarks importance_overhead`, also with `--default-memory`).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**28))
    accepted = [mallopt(parameter, value) == 1 for parameter, value in settings]
    return all(accepted)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory so far, in bytes: of torch's allocator on a GPU, of this process's resident set on a CPU.

    It excludes workers of the loader and other processes, and on a GPU the CUDA context.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
