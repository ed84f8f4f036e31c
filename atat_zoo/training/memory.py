"""Checks of device and memory before training, measurement of peak memory, and release of memory."""

import atexit
import ctypes
import os
import resource
import sys
from typing import Any, Literal

import torch
from composer import Trainer
from composer.utils import collect_env
from torch.distributed.checkpoint import state_dict
from typing_extensions import override

from atat_zoo.data.stream import refuse_sizes
from atat_zoo.evaluation.tasks import require as require_tasks
from atat_zoo.experiment import Experiment
from atat_zoo.system import devices
from atat_zoo.system.devices import SPREAD, torch_device
from atat_zoo.system.environment import processor
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import lacking, require

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


# Composer's names for the device types that it supports.
COMPOSER = {"cpu": "cpu", "cuda": "gpu", "mps": "mps"}
# Composer 0.32 writes the processor's name into its checkpoints, and starts a second Python process to find the name,
# which takes 1.5 s in every run. No setting prevents this, so the function is replaced, which mypy does not expect.
collect_env.get_cpu_model = processor  # type: ignore[assignment]


def device_of(wanted: str) -> str:
    """Return this process's torch device for `train.device`; raise `UserError` if training cannot use it."""
    if wanted == "gpu" and not torch.accelerator.is_available():
        raise UserError('train.device = "gpu", but torch sees no GPU; use "auto" or "cpu"')
    if wanted == SPREAD:
        raise UserError(f'train.device = "{SPREAD}": only evaluation and generation support it; use "auto"')
    try:
        device = torch.device(torch_device(wanted))
    except UserError as error:
        raise UserError(f"train.device: {error}") from None
    if device.type not in COMPOSER:
        if wanted == "auto":
            return "cpu"
        known = ", ".join(f'"{name}"' for name in COMPOSER.values())
        problem = f'train.device = "{wanted}": Composer does not support the device type {device.type!r}'
        raise UserError(f"{problem}; use one of {known}")
    if device.index is not None:
        which = ", and choose GPUs with the environment variable CUDA_VISIBLE_DEVICES" * (device.type == "cuda")
        raise UserError(f'train.device = "{wanted}": each process uses the GPU of its rank; use "gpu"{which}')
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device.type == "cuda" else device.type


def check(experiment: Experiment, device: str, ranks: int) -> None:
    """Raise `UserError` if ranks do not divide lanes or batch, or if memory, a package or a compiler is lacking."""
    spec = experiment.train
    for key, value in (("data.lanes", experiment.data.lanes), ("train.batch_size", spec.batch_size)):
        if value % ranks:
            raise UserError(f"{key} = {value} cannot be shared by {ranks} ranks; choose a multiple of {ranks}")
    refuse_sizes(experiment.data.length, spec.batch_size, ranks, experiment.data.workers)
    if problems := lacking((experiment.parts["optimizer"], experiment.parts["backbone"], *spec.parts)):
        raise UserError("\n".join(problems))
    require_tasks(experiment.evaluation.tasks, experiment)
    if not device.startswith("cuda"):
        _require_activations(experiment, ranks)
    if compiles(spec.compile, device):
        _require_compiler()


def compiles(wanted: bool | Literal["auto"], device: str | torch.device) -> bool:
    """Return whether training on a device is compiled, given the value of `train.compile`."""
    # On a CPU the C++ compiler takes minutes and hardly shortens a step; on other devices compilation is untested.
    return torch.device(device).type == "cuda" if wanted == "auto" else wanted


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(
            "train.compile needs a C++ compiler, but none was found; install one such as g++, set the environment "
            "variable CXX, or set train.compile = false"
        ) from None


def _require_activations(experiment: Experiment, ranks: int) -> None:
    """Raise a `UserError` if the activations of a micro-batch do not fit into this machine's memory."""
    rows = experiment.train.rows_at_once(ranks)
    if rows == "auto":
        raise UserError('train.microbatch_size = "auto" needs a CUDA GPU; choose a number of sequences')
    shape = getattr(experiment.parts["backbone"], "shape", None)
    if shape is None:
        return
    layers, width, _ = shape
    size = 4 * layers * width * rows * experiment.data.length  # at least the layers' inputs in float32
    require(size, f"computing {rows} sequences at once", "activations", "lower train.microbatch_size")


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory for large blocks; return False if the allocator is not glibc's or refuses.

    Each step allocates and frees the same large tensors. By default, glibc maps each tensor anew, and the page faults
    take up to a third of a step (compare `python -m benchmarks importance_overhead` with and without
    `--default-memory`).
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**28))
    accepted = [mallopt(parameter, value) == 1 for parameter, value in settings]
    return all(accepted)


def forget_old_shapes() -> None:
    """Limit oneDNN's cache to the kernels of 64 shapes instead of 1,024, unless the environment sets a limit.

    Call this function before oneDNN is first used. The number of masked positions, and therefore the shapes, change at
    every step, so the memory used by training on a CPU would otherwise grow for a thousand steps. Recreating kernels
    takes no measurable time (`python -m benchmarks growth`).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes so far: of torch's allocator on a GPU, otherwise of this process's resident set.

    The peak excludes loader workers and other processes, and on a GPU also the CUDA context. Apple's GPUs report no
    peak, so it is that of the resident set.
    """
    if (allocated := devices.peak_memory(device)) is not None:
        return allocated
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


class ZooTrainer(Trainer):
    """Composer's trainer, but it never repeats a batch after its optimizer step, and no such step waits for the loss.

    With automatic micro-batches, Composer 0.32 halves them and repeats the batch when memory runs out. It does the same
    after two consecutive batches in which the allocator had to free memory, although the optimizer step of the second
    batch has already been made. Here the second batch is not repeated, and only later batches use the halved
    micro-batches.
    """

    @property
    def num_consecutive_thrashes(self) -> int:
        """Number of consecutive batches that had to free memory; never 2, at which Composer would repeat a batch."""
        return self._thrashes

    @num_consecutive_thrashes.setter
    def num_consecutive_thrashes(self, count: int) -> None:
        self._thrashes = count % 2
        if count == 2:
            rows: Any = self.state.device_train_microbatch_size
            self.state.device_train_microbatch_size = max(1, rows // 2)

    @override
    def _use_closures(self) -> bool:
        # A closure returns the loss as a number, so the host would wait for the gradients before it begins the update.
        return False


def let_go(trainer: Trainer) -> None:
    """Release a closed trainer and its model, which Composer 0.32 and torch 2.7 would keep until the process ends."""
    atexit.unregister(trainer.engine._close)  # a static method
    # A cache of weight names whose keys are models; other versions of torch may not have it.
    clear = getattr(getattr(state_dict, "_get_fqns", None), "cache_clear", None)
    if clear is not None:
        clear()
