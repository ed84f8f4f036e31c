"""Composer's training on a virtual GPU: from the batch to the moving average it waits for little, and all is listed."""

import functools
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from composer import Callback, DataSpec
from composer.algorithms import GradientClipping
from composer.devices import DeviceGPU, DeviceMPS

from atat_zoo import Zoo
from atat_zoo.experiment import TrainSpec
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.training.composer_model import Progress, SkippedRows, ZooModel, prepare
from atat_zoo.training.ema import MovingAverage
from atat_zoo.training.memory import ZooTrainer, let_go
from atat_zoo.training.metrics_writer import MetricsWriter
from tests.modeling.objectives.small_objectives import BASELINES, N, batch, build
from tests.virtual_gpu.device import CUDA, VirtualGPU, on_cpu, to_gpu

pytestmark = pytest.mark.slow

STEPS, WARM, ROWS = 3, 1, 4  # steps, those that are not counted, rows of a micro-batch
COUNTED, MICRO_BATCHES = STEPS - WARM, N // ROWS
MDLM = {"use": "mdlm", "correction": "horvitz_thompson"}
STATE = {
    "mask_rates": {"use": "adaptive", "bins": 2},
    "curriculum": "dynamic",
    "target": {"use": "difficulty", "scale": "running"},
    "masking": {"use": "position", "bias": "running"},
}
# Why the host waits, and how often in a step.
TRAINER = "composer/trainer/trainer.py Trainer."
WAITING = {
    ("nonzero", "diffusion/positions.py pairs"): (
        "the head reads the masked positions alone, and their number is the shape of what it reads",
        MICRO_BATCHES,
    ),
    ("_local_scalar_dense", f"{TRAINER}_iter_dataloader"): (
        "Composer asks whether every rank has a batch, before anything of the step is queued",
        1,
    ),
    ("_local_scalar_dense", f"{TRAINER}_train_microbatches"): (
        "Composer adds up the rows of all ranks, before anything of the step is queued",
        1,
    ),
    ("copy to the host", f"{TRAINER}_train_loop.<locals>.<dictcomp>"): (
        "Composer reads the loss when the update is queued; a training that has diverged stops at once",
        1,
    ),
    ("copy to the host", f"{TRAINER}_accumulate_time_across_ranks"): (
        "Composer adds up rows, tokens and seconds of all ranks, when it has read the loss and nothing is queued",
        3,
    ),
}
# Those of one optimizer, for each weight.
OF_OPTIMIZER = {
    "adafactor": {
        ("_local_scalar_dense", f"{TRAINER}_train_batch"): (
            "torch's Adafactor reads the norm of every weight and of its update as numbers",
            2,
        )
    }
}


class VirtualDevice(DeviceGPU):
    """Composer's GPU, without asking for one."""

    def __init__(self):
        self._device = CUDA


class AppleDevice(DeviceMPS):
    """Composer's Apple GPU, likewise."""

    def __init__(self):
        self._device = CUDA


class Counting(Callback):
    """Counts from the end of one step to the end of another, after the callbacks before it."""

    def __init__(self, gpu):
        self.gpu = gpu

    def batch_checkpoint(self, state, logger):
        if int(state.timestamp.batch) == WARM:
            self.gpu.forget()


def trained(gpu=None, optimizer="adamw", objective=MDLM, parts=STATE, *, more=(), folder=None, clipping=()):
    """Train as `trainer.train` does; return the state, the average, and how many lines were written to a folder."""
    torch.manual_seed(3)
    zoo, lines = Zoo.load(), []
    model = ZooModel(build(objective, **parts), STEPS, bf16=False, detailed=True)
    if gpu is not None:
        to_gpu(model)  # Composer would move it, and its weights, unlike these, would stay the same objects
    average = MovingAverage(model, 0.9, "cpu" if gpu is None else CUDA)
    rows = [batch(number) for number in range(STEPS)]
    batches = [{name: getattr(each, name) for name in ("tokens", "maskable", "index")} for each in rows]
    made = zoo.spec("optimizer", optimizer).build(model)
    algorithms = [zoo.spec("algorithm", {"use": "gradient_clipping", "clipping_type": by}).build() for by in clipping]
    every = TrainSpec(steps=100, log_every=100 if folder is None else 1)
    trainer = ZooTrainer(
        model=model,
        train_dataloader=DataSpec(
            torch.utils.data.DataLoader(batches, batch_size=None),
            batch_transforms=prepare,
            get_num_samples_in_batch=lambda of: len(of["tokens"]),
            get_num_tokens_in_batch=lambda of: of["tokens"].numel(),
        ),
        optimizers=made,
        schedulers=zoo.spec("schedule", {"use": "cosine", "warmup_steps": 2}).build(made, STEPS),
        step_schedulers_every_batch=True,
        max_duration=f"{STEPS}ba",
        device="cpu" if gpu is None else AppleDevice() if gpu.narrow else VirtualDevice(),
        precision="fp32",
        device_train_microbatch_size=ROWS,
        algorithms=[GradientClipping("norm", 1.0), *algorithms],
        callbacks=[
            Progress(model),
            *more,
            average,
            MetricsWriter(model, RunFolder(folder or Path("none")), every, lambda *line: lines.append(line)),
            *([Counting(gpu)] if gpu else []),
        ],
        progress_bar=False,
        seed=1,
    )
    trainer.fit()
    trainer.close()
    let_go(trainer)
    return model.state_dict(), average.average, len(lines)


def counted(**options):
    """Return the GPU after such a training, and what came of it."""
    with VirtualGPU() as gpu:
        return gpu, trained(gpu, **options)


@functools.cache
def on_both(optimizer="adamw"):
    """Return the GPU after a training, and what came of it there and on the CPU."""
    gpu, found = counted(optimizer=optimizer)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return gpu, found, trained(optimizer=optimizer)


def check_same(found, expected):
    """Check the weights and averages of two trainings."""
    for name, value in expected[0].items():
        torch.testing.assert_close(on_cpu(found[0][name]), value, rtol=1e-5, atol=1e-7, msg=name)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(on_cpu(mine), theirs, rtol=1e-5, atol=1e-7)


def too_many(gpu, more=None):
    """Return the waits of a step that are in no table, and how often."""
    allowed = WAITING | (more or {})
    per_step = {wait: count / COUNTED for wait, count in gpu.waits.items()}
    return {wait: count for wait, count in per_step.items() if count > allowed.get(wait, ("", 0))[1]}


@pytest.mark.parametrize("optimizer", Zoo.load().names("optimizer"))
def test_a_step_of_every_optimizer_is_that_of_the_cpu(optimizer):
    package = getattr(Zoo.load().spec("optimizer", optimizer), "package", None)
    if package and find_spec(package[0]) is None:
        pytest.skip(f"needs {package[1]}")
    gpu, found, expected = on_both(optimizer)
    more = {wait: (why, each * len(found[1])) for wait, (why, each) in OF_OPTIMIZER.get(optimizer, {}).items()}
    assert too_many(gpu, more) == {}
    assert gpu.waits.keys() == (WAITING | more).keys()  # what is listed happens
    check_same(found, expected)


def test_without_float64_a_training_is_that_of_the_cpu(tmp_path):
    with VirtualGPU(narrow=True) as gpu:
        found = trained(gpu, folder=tmp_path)
    assert found[2] == STEPS
    check_same(found, on_both()[2])


def test_neither_clipping_nor_rows_that_a_damaged_shard_lacks_wait():
    messages = []
    gpu, _ = counted(
        clipping=("value", "adaptive", "per_module"),
        more=[SkippedRows(messages.append)],
        objective=BASELINES["autoregressive"],  # whose figures have no importance
        parts={"estimator": "uniform"},
    )
    assert too_many(gpu) == {}
    assert len(messages) == 1


def test_a_line_of_metrics_is_a_few_waits(tmp_path):
    gpu, (_, _, lines) = counted(folder=tmp_path)
    assert lines == STEPS
    # The means at once, the rates drawn, stage and strength of a curriculum, and the rank correlation.
    assert sum(too_many(gpu).values()) <= 11
    assert not any(place.startswith("composer/") for _, place in too_many(gpu))


def test_what_is_uploaded_in_a_step():
    """The four tensors of each micro-batch and what Composer adds up: none of it waits."""
    gpu, *_ = on_both()
    ours = {place for place in gpu.uploads if not place.startswith("composer/")}
    assert ours == set()
    assert sum(gpu.uploads.values()) / COUNTED <= 4 * MICRO_BATCHES + 8
