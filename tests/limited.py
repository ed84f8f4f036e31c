"""Less memory, and less room on the disk, for tests of what asks for too much."""

import resource
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _limit(kind, size):
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def limited(more=512 << 20):
    """Let this process reserve only so many bytes more than it has: what asks for more gets a `MemoryError`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return _limit(resource.RLIMIT_AS, used + more)


def full_disk(size):
    """No file may be larger, as on a disk that is full."""
    return _limit(resource.RLIMIT_FSIZE, size)
