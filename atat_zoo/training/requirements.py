"""What a training needs of its machine, refused in a sentence where that is missing, before anything is built."""

from __future__ import annotations

import os

import torch

from atat_zoo.data.stream import refuse_sizes
from atat_zoo.errors import UserError
from atat_zoo.experiment import Experiment
from atat_zoo.machine import lacking, require
from atat_zoo.model.model import torch_device


def device_of(wanted: str) -> str:
    """Return torch's name of the device of this process, from `train.device`."""
    if wanted == "gpu" and not torch.cuda.is_available():
        raise UserError('train.device = "gpu", but torch sees no GPU; use "auto" or "cpu"')
    return "cpu" if torch_device(wanted) == "cpu" else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def check(experiment: Experiment, device: str, ranks: int) -> None:
    """Refuse ranks that do not divide lanes and batch, sizes, and what this machine does not have."""
    spec = experiment.train
    for key, value in (("data.lanes", experiment.data.lanes), ("train.batch_size", spec.batch_size)):
        if value % ranks:
            raise UserError(f"{key} = {value} cannot be shared by {ranks} ranks; choose a multiple of {ranks}")
    refuse_sizes(experiment.data.length, spec.batch_size, ranks, experiment.data.workers)
    if problems := lacking((experiment.parts["optimizer"], *spec.parts)):
        raise UserError("\n".join(problems))
    if device == "cpu" and spec.microbatch_size == "auto":
        raise UserError(
            'train.microbatch_size = "auto" finds out what fits into the memory of a GPU, and this training has none; '
            "choose a number"
        )
    if device == "cpu":
        _require_activations(experiment, ranks)
    if spec.compile:
        _require_compiler()


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(
            "train.compile = true needs a C++ compiler, and there is none; install one, such as g++, name it in the "
            "environment variable CXX, or leave train.compile out"
        ) from None


def _require_activations(experiment: Experiment, ranks: int) -> None:
    """Refuse micro-batches if what every layer keeps of them does not fit into the memory of a CPU."""
    rows = experiment.train.rows_at_once(ranks)
    shape = getattr(experiment.parts["backbone"], "shape", None)
    if shape is None or rows == "auto":
        return
    layers, width, _ = shape
    size = 4 * layers * width * rows * experiment.data.length  # its input in float32, at the least
    require(size, f"computing {rows} sequences at once", "what the layers keep", "lower train.microbatch_size")
