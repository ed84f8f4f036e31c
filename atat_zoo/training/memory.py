"""The machine of a training: what it must have, refused in a sentence beforehand; memory: its peak, end, and reuse."""

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


# Composer's names of the kinds of devices that it trains on.
COMPOSER = {"cpu": "cpu", "cuda": "gpu", "mps": "mps"}
# Composer 0.32 writes the name of the processor into its checkpoints, and starts another Python to find it, which takes
# 1.5 s in every training. It has no setting for that, so its function is replaced, which mypy does not expect.
collect_env.get_cpu_model = processor  # type: ignore[assignment]


def device_of(wanted: str) -> str:
    """Return torch's name of the device of this process, from `train.device`."""
    if wanted == "gpu" and not torch.accelerator.is_available():
        raise UserError('train.device = "gpu", but torch sees no GPU; use "auto" or "cpu"')
    if wanted == SPREAD:
        raise UserError(f'train.device = "{SPREAD}": a training needs the whole model on its device; use "auto"')
    try:
        device = torch.device(torch_device(wanted))
    except UserError as error:
        raise UserError(f"train.device: {error}") from None
    if device.type not in COMPOSER:
        if wanted == "auto":
            return "cpu"
        known = ", ".join(f'"{name}"' for name in COMPOSER.values())
        problem = f'train.device = "{wanted}": Composer, which trains, has no device of the kind {device.type!r}'
        raise UserError(f"{problem}; use one of {known}")
    if device.index is not None:
        which = ", and say by the environment variable CUDA_VISIBLE_DEVICES which there are" * (device.type == "cuda")
        raise UserError(f'train.device = "{wanted}": a process takes the GPU of its rank; use "gpu"{which}')
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device.type == "cuda" else device.type


def check(experiment: Experiment, device: str, ranks: int) -> None:
    """Refuse ranks that do not divide lanes and batch, sizes, and what this machine does not have, tasks' files too."""
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
    """Return whether a training on a device is compiled, by `train.compile`."""
    # On a CPU the C++ compiler takes minutes, and a step hardly becomes shorter; on others it was not tried.
    return torch.device(device).type == "cuda" if wanted == "auto" else wanted


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(
            "train.compile needs a C++ compiler, and there is none; install one, such as g++, name it in the "
            "environment variable CXX, or set train.compile = false"
        ) from None


def _require_activations(experiment: Experiment, ranks: int) -> None:
    """Refuse micro-batches if what every layer keeps of them does not fit into this machine's memory."""
    rows = experiment.train.rows_at_once(ranks)
    if rows == "auto":
        raise UserError(
            'train.microbatch_size = "auto" finds out what fits into the memory of a CUDA GPU, and this training has '
            "none; choose a number"
        )
    shape = getattr(experiment.parts["backbone"], "shape", None)
    if shape is None:
        return
    layers, width, _ = shape
    size = 4 * layers * width * rows * experiment.data.length  # its input in float32, at the least
    require(size, f"computing {rows} sequences at once", "what the layers keep", "lower train.microbatch_size")


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
    """Return the peak memory so far, in bytes: of torch's allocator on a GPU, else of this process's resident set.

    It excludes workers of the loader and other processes, and on a GPU the CUDA context. Apple's GPU counts no peak.
    """
    if (allocated := devices.peak_memory(device)) is not None:
        return allocated
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


class ZooTrainer(Trainer):
    """Composer's trainer, which repeats no batch after its optimizer step, and reads no loss before it.

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

    @override
    def _use_closures(self) -> bool:
        # A closure returns the loss as a number: the host would wait for the gradients, and begin the update only then.
        return False


def let_go(trainer: Trainer) -> None:
    """Let go of a closed trainer and its model, which Composer 0.32 and torch 2.7 would keep until the process ends."""
    atexit.unregister(trainer.engine._close)  # a function of no instance
    # A cache of the names of weights, whose keys are models; other versions of torch may have none.
    clear = getattr(getattr(state_dict, "_get_fqns", None), "cache_clear", None)
    if clear is not None:
        clear()
