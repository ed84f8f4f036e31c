"""Checks that a GPU computes the same losses, random numbers and texts as a CPU, and that a killed run resumes."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs
import torch
from composer import Callback
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from atat_zoo.diffusion.dropout import Dropout, set_keys
from atat_zoo.diffusion.randomness import sequence_keys, stratified, uniform
from atat_zoo.experiment import load
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.modeling.objectives import Batch
from atat_zoo.modeling.objectives.denoising import DenoisingModule
from atat_zoo.training import resume, train
from atat_zoo.training.trainer import compile_objective
from benchmarks.gpu.sampling import denoisers, sampler, samplers
from benchmarks.gpu.steps import backend
from benchmarks.pairs import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from composer import Logger, State

    from atat_zoo.experiment import Experiment
    from atat_zoo.experiment.runs import RunFolder
    from benchmarks.gpu.measured import Found
    from benchmarks.gpu.setting import Setting

#: Experiments that cover every objective with the components that ship with it.
RECIPES = (
    *("atat", "sets", "importance", "bell", "mdlm", "baselines/adaptive_importance", "baselines/adaptive_position"),
    *("baselines/autoregressive", "baselines/block", "baselines/d3pm", "baselines/mlm", "baselines/sedd"),
    "baselines/strided",
)
#: Experiments whose attention has a mask.
MASKED = ("sets", "baselines/block", "baselines/strided")
VOCABULARY, ROWS = 2048, 8
STEPS, SAVED, KILLED = 6, 2, 5
AFTER = f"losses of {STEPS} steps, killed after {KILLED} and resumed after {KILLED // SAVED * SAVED}"
#: Largest relative difference of losses by precision, and of the gradient norm in float32.
LOSSES, GRADIENT = {"float32": 1e-5, "bf16": 1e-3}, 1e-4


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Multiply float32 numbers in float32 inside this context; Composer lets a GPU round them to 10 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def measure(setting: Setting, found: Found) -> None:
    """Compare the GPU with the CPU."""
    with exactly():
        losses(setting, found)
        draws(setting, found)
        texts(setting, found)


def recipe(setting: Setting, name: str, *more: str) -> Experiment:
    """Return an experiment of the size for comparisons with the CPU; it has dropout and no n-gram prior."""
    settings = [f"data.length={setting.size.text_length}", f"train.batch_size={ROWS}", "backbone.ngram_prior=0"]
    return load(name, [*settings, "backbone.dropout=0.1", *setting.size.small, *more])


def losses(setting: Setting, found: Found) -> None:
    """Compare the loss, its gradient, and the network's inputs, which contain the drawn masks."""
    worst: dict[str, tuple[float, str]] = {}
    wrong, kind = [], torch.device(setting.device).type
    for name in RECIPES:
        experiment = recipe(setting, name)
        module = setting.network(experiment, VOCABULARY).train()
        batch, line = drawn(setting.size.text_length), f"{name:32}"
        for precision in LOSSES:
            here = step(copy.deepcopy(module), batch, "cpu", precision)
            there = step(setting.move(copy.deepcopy(module)), setting.move(batch), kind, precision)
            differences = {precision: abs(there[0] / here[0] - 1)}
            if precision == "float32":
                differences["gradient"] = abs(there[1] / here[1] - 1)
                same = len(here[2]) == len(there[2]) and all(map(torch.equal, here[2], there[2]))
                wrong += [] if same else [name]
            for what, difference in differences.items():
                worst[what] = max(worst.get(what, (0.0, "")), (difference, name))
                line += f" {what} {difference:.1e}"
        found.lines.append(line)
    for what, bar in (*LOSSES.items(), ("gradient", GRADIENT)):
        difference, name = worst[what]
        of = "gradient norm in float32" if what == "gradient" else f"loss in {what}"
        row = f"{of}, GPU relative to CPU, worst of {len(RECIPES)} experiments"
        found.row(row, f"≤ {bar:.0e}", f"{difference:.1e} (`{name}`)", difference <= bar)
    found.row("drawn masks", "equal", f"differ in {', '.join(wrong)}" if wrong else "equal", not wrong)


@exactly()
def blocks(setting: Setting, found: Found) -> None:
    """Compare losses and gradients from FlexAttention, compiled on the GPU, with those from dense masks on the CPU."""
    batch, kind = drawn(setting.size.text_length), torch.device(setting.device).type
    if kind == "cpu" and (why := refused()):
        found.row("FlexAttention", "", why)
        return
    for name in MASKED:
        module = setting.network(recipe(setting, name), VOCABULARY).train()
        here = step(copy.deepcopy(module), batch, "cpu", "float32")
        torch._dynamo.reset()
        # Also on a CPU, so that --small covers it.
        always = mock.patch.object(DenoisingModule, "attends_in_blocks", return_value=True)
        with backend(setting.size.backend), always:
            compiled = setting.move(module)
            compiled.context = attrs.evolve(compiled.context, compiled=True)
            compile_objective(compiled)
            there = step(compiled, setting.move(batch), kind, "float32")
        loss, gradient = (abs(there[which] / here[which] - 1) for which in (0, 1))
        seen, met = f"{loss:.1e}, {gradient:.1e}", loss <= LOSSES["float32"] and gradient <= GRADIENT
        bar = f"≤ {LOSSES['float32']:.0e}, {GRADIENT:.0e}"
        found.row(f"`{name}` by FlexAttention relative to dense masks on the CPU: loss, gradient norm", bar, seen, met)


def refused() -> str:
    """Return why torch has no gradient of FlexAttention on a CPU, or an empty string if it has one."""
    q = torch.zeros(1, 1, 16, 16, requires_grad=True)
    try:
        flex_attention(q, q, q)
    except NotImplementedError as error:
        return str(error)
    return ""


def drawn(length: int) -> Batch:
    """Return a batch from the middle of training; its last rows end early."""
    tokens = torch.randint(0, VOCABULARY, (ROWS, length), generator=torch.Generator().manual_seed(0))
    maskable = torch.arange(length) < torch.tensor([length] * (ROWS - 2) + [length // 2, 1])[:, None]
    mean = maskable.sum(1).float().mean()
    return Batch(tokens=tokens, maskable=maskable, index=torch.arange(ROWS), mean_maskable=mean, progress=0.5)


def step(module: Any, batch: Batch, kind: str, precision: str) -> tuple[float, float, list[torch.Tensor]]:
    """Return the loss, the norm of its gradient, and the tokens that the network reads."""
    read: list[torch.Tensor] = []
    module.backbone.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].cpu()))
    with torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16"):
        loss = module.loss(batch)["loss"]
    loss.backward()
    squares = [float(weight.grad.double().square().sum()) for weight in module.parameters() if weight.grad is not None]
    return float(loss.detach()), sum(squares) ** 0.5, read


def draws(setting: Setting, found: Found) -> None:
    """Compare random numbers that are drawn from keys, bit by bit."""
    rows = torch.arange(64)

    def dropped(rows: torch.Tensor, compiled: bool) -> torch.Tensor:
        layer = Dropout(0.1).train()
        set_keys(layer, sequence_keys(1, "dropout", rows))
        x = torch.ones(len(rows), 33, device=rows.device)
        return torch.compile(layer, backend=setting.size.backend)(x) if compiled else layer(x)

    of: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "24-bit uniform numbers": lambda rows: uniform(sequence_keys(1, "mask", rows), 33),
        "53-bit uniform numbers": lambda rows: uniform(sequence_keys(1, "mask", rows), 33, torch.float64),
        "diffusion times": lambda rows: stratified(sequence_keys(1, "time", rows // 8), rows % 8, 8),
        "dropout": partial(dropped, compiled=False),
        "dropout, compiled on the GPU": partial(dropped, compiled=True),
    }
    for what, draw in of.items():
        expected = dropped(rows, compiled=False) if "compiled" in what else draw(rows)
        same = torch.equal(draw(setting.move(rows)).cpu(), expected)
        found.row(what, "equal", "equal" if same else "differ", same)


def texts(setting: Setting, found: Found) -> None:
    """Compare the texts of every sampler for one seed and a float64 network, in which rounding has no effect."""
    size = setting.size
    here = denoisers(
        setting, lambda name, *more: recipe(setting, f"baselines/{name}", *more), VOCABULARY, torch.float64
    )
    there = {name: setting.move(copy.deepcopy(module)) for name, module in here.items()}
    z, wrong = torch.full((ROWS, min(32, size.text_length)), VOCABULARY), []
    keys = sequence_keys(3, "sample", torch.arange(ROWS))
    for name, of in samplers():
        spec = sampler(name, min(8, size.sampling_steps))
        expected = spec.sample(here[of].denoiser(), z, keys).tokens
        made = spec.sample(there[of].denoiser(), setting.move(z), setting.move(keys)).tokens.cpu()
        if rows := int((made != expected).any(1).sum()):
            wrong.append(f"{name} ({rows} of {ROWS} texts)")
    what = f"texts generated from one seed by {len(samplers())} samplers"
    found.row(what, "equal", f"differ: {', '.join(wrong)}" if wrong else "equal", not wrong)


class Kill(Callback):
    """A callback that kills its process after a step, as the kernel does when memory runs out."""

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Kill."""
        if int(state.timestamp.batch) == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def in_order(gpu: bool) -> Iterator[None]:
    """Let a GPU sum in a fixed order, including in attention's gradient; operations without such a kernel only warn."""
    torch.use_deterministic_algorithms(gpu, warn_only=True)
    try:
        # If torch may only warn, fast attention kernels sum in any order, and only plain products sum in a fixed order.
        with sdpa_kernel(SDPBackend.MATH) if gpu else contextlib.nullcontext():
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def killed(path: str, folder: Path, gpu: bool) -> None:
    """Train until the process is killed; this is all that the process does."""
    with in_order(gpu):
        train(load(path), folder, callbacks=[Kill()])


def resumed(setting: Setting, found: Found) -> None:
    """Kill a training run and resume it; compare its record with that of an uninterrupted run."""
    more = [*setting.words, *setting.size.small, f"train.steps={STEPS}", f"train.save_every={SAVED}"]
    more += ["train.log_every=1", "train.compile=false", "train.precision=fp32", "backbone.dropout=0.1"]
    experiment = setting.experiment("atat", *more, f"train.keep_checkpoints={STEPS // SAVED}")
    path = setting.folder / "killed.toml"
    path.write_text(experiment.to_toml(), encoding="utf-8")
    with in_order(setting.gpu):
        whole, again = (setting.trained(load(str(path)), name).folder for name in ("whole", "again"))
        with contextlib.suppress(BrokenProcessPool):
            alone(killed, str(path), setting.folder / "killed", setting.gpu)
        result = resume(setting.folder / "killed")
    if not result.finished:
        raise KeyboardInterrupt
    expected = losses_of(whole)
    for name, run in (("again", again), ("resumed", result.folder)):
        # The step after which they differ tells where to look: in a step, or in what a checkpoint restores.
        found.lines += [f"{name}: {apart(whole, run, step)}" for step in range(SAVED, STEPS + 1, SAVED)]
    for what, run in ((f"losses of {STEPS} steps, again", again), (AFTER, result.folder)):
        differences = [abs(losses_of(run).get(step, float("nan")) - expected[step]) for step in sorted(expected)]
        same = sorted(expected) == list(range(1, STEPS + 1)) and differences == [0.0] * STEPS
        seen = "equal" if same else f"differ: {', '.join(f'{difference:.1e}' for difference in differences)}"
        found.row(what, "equal", seen, same)


def apart(one: RunFolder, other: RunFolder, step: int) -> str:
    """Return a description of how far apart the weights of two training runs are at a checkpoint."""
    a, b = (load_file(run.checkpoint_model(step) / WEIGHTS) for run in (one, other))
    most = {name: float((a[name].double() - b[name].double()).abs().max()) for name in a}
    where = max(most, key=lambda name: most[name])
    return f"after step {step} " + (f"{where} differs by {most[where]:.1e}" if most[where] else "all weights are equal")


def losses_of(run: RunFolder) -> dict[int, float]:
    """Return a dict from step to loss for a training run."""
    return {line["step"]: line["loss"] for line in run.read_metrics()}
