"""Check this machine's memory and packages before work starts, to refuse work that cannot succeed."""

import logging
import os
import resource
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atat_zoo.system.errors import UserError

# Files that contain the memory limit of a container, or "max" without a limit.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Parts of messages about memory from C++ and from torch, which has no class for such errors on the CPU.
_REFUSED = ("can't allocate memory", "out of memory", "bad_alloc", "Storage size calculation overflowed")

_NEEDS_NONE: ContextVar[bool] = ContextVar("_NEEDS_NONE", default=False)


def memory() -> int:
    """Return the memory limit of this process in bytes, set by the machine, the container or `ulimit -v`."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = [page * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUPS:
        with suppress(OSError, ValueError):
            sizes.append(int(Path(path).read_text()))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with suppress(OSError):  # not Linux
            limit -= page * int(Path("/proc/self/statm").read_text().split()[0])
        sizes.append(max(0, limit))
    return min(sizes)


def free_memory() -> int:
    """Return the free memory, in bytes, that this process may use."""
    sizes = [memory()]
    with suppress(OSError, StopIteration, ValueError):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    return min(sizes)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def install_command(package: str) -> str:
    """Return the command that installs a package from its folder, if a checkout has one, or else by its name."""
    folder = Path(__file__).parents[2] / "plugins" / package
    return f"pip install {f'-e {shlex.quote(str(folder))}' if (folder / 'pyproject.toml').is_file() else package}"


def lacking(parts: Iterable[Any]) -> list[str]:
    """Return a sentence for each component that needs an optional `package` which is not installed."""
    needs = [(part.name, *named) for part in parts if (named := part.package)]
    return [
        f"{name} needs the package {module}; install it with `pip install '{install}'`"
        for name, module, install in needs
        if find_spec(module) is None
    ]


@contextmanager
def needing_no_memory() -> Iterator[None]:
    """Let `require` pass in a `with` block, because objects built there do not take up memory yet."""
    token = _NEEDS_NONE.set(True)
    try:
        yield
    finally:
        _NEEDS_NONE.reset(token)


def require(size: float, asked: str, purpose: str, remedy: str) -> None:
    """Raise a `UserError` if less memory is free than the `size` bytes that `asked` needs for `purpose`."""
    there = free_memory()
    if size > there and not _NEEDS_NONE.get():
        needed = f"{asked} needs about {size / 1e9:,.1f} GB just for {purpose}"
        raise UserError(f"{needed}, but this machine has only {there / 1e9:,.1f} GB free; {remedy}")


def ran_out(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _REFUSED)
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the progress bars and warnings of the `transformers` library during a `with` block."""
    import transformers

    own: Any = transformers.utils.logging
    hub = logging.getLogger("huggingface_hub")
    level, bars, hub_level = own.get_verbosity(), own.is_progress_bar_enabled(), hub.level
    own.set_verbosity_error()
    own.disable_progress_bar()
    hub.setLevel(logging.ERROR)  # it warns about every retry
    try:
        yield
    finally:
        own.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            own.enable_progress_bar()
