"""Memory of a training: its peak, its end, where it is scarce, and an allocator that reuses freed blocks on a CPU."""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import sys
from typing import Any

import torch
from composer import Trainer
from torch.distributed.checkpoint import state_dict

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory for large blocks; returns whether it does, False for other allocators.

    A step allocates and frees the same large tensors again and again. By default glibc maps each anew, and the page
    faults cost up to a third of a step (`python -m benchmarks importance_overhead`, also with `--default-memory`).
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**28))
    accepted = [mallopt(parameter, value) == 1 for parameter, value in settings]
    return all(accepted)


def forget_old_shapes() -> None:
    """Make oneDNN keep the kernels of 64 shapes instead of 1,024; before its first, unless the environment says more.

    Every step has another number of masked positions, and so shapes of its own: the memory of a training on a CPU would
    grow for a thousand steps. To make them again takes no time that can be measured (`python -m benchmarks growth`).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory so far, in bytes: of torch's allocator on a GPU, of this process's resident set on a CPU.

    It excludes workers of the loader and other processes, and on a GPU the CUDA context.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


class ZooTrainer(Trainer):
    """Composer's trainer, which repeats no batch after its optimizer step.

    With micro-batches of its own choice, Composer 0.32 halves them and repeats a batch, both where memory did not
    suffice for it, and after two batches in which the allocator had to make room: the second of them has made its step.
    Here that second one counts, and the next are computed in halves.
    """

    @property
    def num_consecutive_thrashes(self) -> int:
        """Batches in a row for which the allocator had to make room; never two, at which Composer repeats the last."""
        return self._thrashes

    @num_consecutive_thrashes.setter
    def num_consecutive_thrashes(self, count: int) -> None:
        self._thrashes = count % 2
        if count == 2:
            rows: Any = self.state.device_train_microbatch_size
            self.state.device_train_microbatch_size = max(1, rows // 2)


def let_go(trainer: Trainer) -> None:
    """Let go of a closed trainer and its model, which Composer 0.32 and torch 2.7 would keep until the process ends."""
    atexit.unregister(trainer.engine._close)  # a function of no instance
    # A cache of the names of weights, whose keys are models; other versions of torch may have none.
    clear = getattr(getattr(state_dict, "_get_fqns", None), "cache_clear", None)
    if clear is not None:
        clear()
