"""Estimates of the FLOPs, memory, hours and dollars that training takes on GPUs or this CPU (docs/results/scale.md).

A step takes three times the FLOPs of its forward pass (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B), or twice
with LoRA, whose base weights need no gradients. As in PaLM, only matrix products are counted; attention is counted in
full even with a causal mask, and recomputed activations are not counted. Unlike in PaLM, the head is counted only at
the masked positions, which need logits. The FLOPs of an importance estimator are included in the cost of training but
not in the utilisation of a run, so the estimator's time lowers the utilisation.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import attrs
import torch

from atat_zoo.data.corpora.text_source import published_size
from atat_zoo.diffusion import chunks
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import Context
from atat_zoo.registry.spec import evolve
from atat_zoo.system.devices import device_name
from atat_zoo.system.errors import UserError, clip, nearest

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment
    from atat_zoo.modeling.estimators import Estimator


class GPU(NamedTuple):
    """The peak FLOP/s and the memory of a GPU."""

    peak: float  # dense bf16 TFLOP/s: half of what a datasheet says “with sparsity”
    memory: float  # GB


# Keyed by the driver's name of a GPU without the maker's name; a short name means the first match. A name that is not
# listed, such as that of a GPU partition (MIG), has no known peak. From NVIDIA's datasheets:
GPUS: dict[str, GPU] = {
    # “NVIDIA A100 Tensor Core GPU”
    "A100-SXM4-80GB": GPU(312.0, 80),
    "A100-SXM4-40GB": GPU(312.0, 40),
    "A100 80GB PCIe": GPU(312.0, 80),
    "A100-PCIE-40GB": GPU(312.0, 40),
    # “NVIDIA H100 Tensor Core GPU”: SXM, PCIe, NVL
    "H100 80GB HBM3": GPU(989.4, 80),
    "H100 PCIe": GPU(756.0, 80),
    "H100 NVL": GPU(835.5, 94),
    # “NVIDIA H200 Tensor Core GPU”: SXM, NVL
    "H200": GPU(989.4, 141),
    "H200 NVL": GPU(835.5, 141),
    "L40S": GPU(362.05, 48),  # “NVIDIA L40S”
    "L40": GPU(181.05, 48),  # “NVIDIA L40”
    "L4": GPU(121.0, 24),  # “NVIDIA L4 Tensor Core GPU”
    "A10": GPU(125.0, 24),  # “NVIDIA A10 Tensor Core GPU”
    "B200": GPU(2250.0, 180),  # “NVIDIA HGX Platform”, of eight
}
PEAKS = {name: gpu.peak for name, gpu in GPUS.items()}


def gpu_named(name: str) -> str:
    """Return the name in `GPUS` for a name such as A100, h100 or NVIDIA H100 PCIe; raise `UserError` if none fits."""
    words = _words(name.removeprefix("NVIDIA "))
    exact = [each for each in GPUS if _words(each) == words]
    for each in exact or [each for each in GPUS if words and words <= _words(each)]:
        return each
    known = dict.fromkeys(re.split("[ -]", each)[0] for each in GPUS)
    raise UserError(
        f"--gpu {clip(repr(name))}: unknown GPU; use {', '.join(known)}, or a full name: "
        f"{', '.join(each for each in GPUS if each not in known)}{nearest(name, [*known, *GPUS])}"
    )


def _words(name: str) -> set[str]:
    return set(re.split("[ -]+", name.strip().lower())) - {""}


def step_flops(experiment: Experiment, vocabulary_size: int, mask_rate: float) -> float | None:
    """Return the model FLOPs of a step over the global batch, or None for a backbone without a formula.

    `mask_rate` is the fraction of masked tokens.
    """
    backbone, objective = experiment.parts["backbone"], experiment.parts["objective"]
    length = experiment.data.length
    if not hasattr(backbone, "flops"):
        return None
    rows, tokens = objective.network_input(experiment)
    first = {"first": length} if backbone.returns_first else {}
    forward: float = backbone.flops(
        vocabulary_size, rows, tokens, objective.logit_share(mask_rate) * rows * length, **first
    )
    return (2 if backbone.lora_rank else 3) * forward


def peak_flops(experiment: Experiment, device: str, bf16: bool) -> float | None:
    """Return `train.peak_tflops` in FLOP/s or, without it, a GPU's known bf16 peak if `bf16` is used, else None."""
    if experiment.train.peak_tflops is not None:
        return 1e12 * experiment.train.peak_tflops
    peak = PEAKS.get(device_name(device).removeprefix("NVIDIA ").strip()) if bf16 else None
    return peak and 1e12 * peak


def utilisation(
    experiment: Experiment, vocabulary_size: int, peak: float | None, devices: int, line: dict[str, Any]
) -> dict[str, float]:
    """Return `flops_per_second` and `utilisation` (in [0, 1]) for a line of metrics, or an empty dict if unknown.

    `peak` is the peak FLOP/s of one device; without it, only `flops_per_second` is returned.
    """
    rate, train = line.get("mask_rate"), experiment.train
    flops = None if rate is None else step_flops(experiment, vocabulary_size, rate)
    if flops is None:
        return {}
    steps = line["tokens_per_second"] / (train.batch_size * experiment.data.length)
    figures = {"flops_per_second": round(flops * steps, 1)}
    if peak is not None:
        figures["utilisation"] = round(flops * steps / (peak * devices), 4)
    return figures


def state(weights: int) -> dict[str, int]:
    """Return the bytes of `weights` weights in float32, their gradients, AdamW's two moments, and the EMA."""
    return {"weights": 4 * weights, "gradients": 4 * weights, "AdamW": 8 * weights, "EMA": 4 * weights}


def buckets(weights: int, gpus: int) -> int:
    """Return the bytes of DDP's gradient buckets: a copy of all gradients with Composer's settings, 0 on one GPU."""
    return 4 * weights if gpus > 1 else 0


def activations(backbone: DiTBackbone, rows: int, length: int, *, compiled: bool) -> int:
    """Return the bytes of activations that the layers keep for the backward pass over [rows, length] tokens.

    With autocast to bf16 on CUDA, each layer keeps the following per token, in units of the width D. In float32, it
    keeps the inputs of two norms (normalised if compiled). In bf16, it keeps 2 for the norms, 3 for queries, keys and
    values, 2 for normalised and rotated queries and keys, 1 for attention, and twice the width of the feed-forward
    network. Without compilation, it also keeps the inputs and outputs of the query and key norms in float32, and one
    byte per entry of both branches for dropout; with compilation, these are recomputed. Each layer also keeps the
    statistics of its norms and attention. The activations of the last norm are added once. With
    `checkpoint_activations`, only the float32 input of each layer is kept, and one layer at a time is recomputed.
    """
    layers, width, heads = backbone.shape
    hidden = max(1, int(width * backbone.mlp_ratio))
    token = 4 * 2 * width + 2 * (8 * width + 2 * hidden)
    token += 0 if compiled else (4 * 4 + (2 if backbone.dropout else 0)) * width
    statistics = 4 * (4 + 4 * heads + heads)
    layer = token + statistics
    kept = layer + layers * 4 * width if backbone.checkpoint_activations else layers * layer
    return rows * length * (kept + 4 * width + 8)


def casts(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes of the bf16 copies of all matrix weights, which autocast keeps for the duration of a step."""
    return 2 * (backbone.matrices + vocabulary_size * backbone.shape[1])


def gathered(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes of gathered weights on a GPU, in addition to those of its shard.

    The gathered weights are those of one layer and all weights outside the layers, such as the head, in float32 with
    gradients, plus the bf16 copies of each layer that autograd keeps for the backward pass.
    """
    layers, width, _ = backbone.shape
    return casts(backbone, vocabulary_size) + 8 * (vocabulary_size * width + backbone.matrices // layers)


def memory(
    backbone: DiTBackbone,
    vocabulary_size: int,
    rows: int,
    tokens: int,
    positions: int,
    *,
    gpus: int = 1,
    sharded: bool = False,
    compiled: bool,
) -> int:
    """Return the memory of each GPU in bytes, for a micro-batch [rows, tokens] with logits at `positions` positions.

    With FSDP, each GPU holds a shard of the weights, gradients, AdamW state and EMA, and gathers one layer at a time;
    with DDP, each GPU holds all of them.
    """
    weights = backbone.weights(vocabulary_size)
    kept = sum(state(weights).values())
    if sharded:
        kept = kept // gpus + gathered(backbone, vocabulary_size)
    else:
        kept += buckets(weights, gpus) + casts(backbone, vocabulary_size)
    seen = activations(backbone, rows, tokens, compiled=compiled)
    return kept + seen + head(backbone, vocabulary_size, positions, compiled=compiled)


def checkpoint_size(weights: int, *, ema: bool) -> int:
    """Return the bytes of a checkpoint on disk, with the weights, AdamW's moments, the EMA and the model."""
    parts = state(weights)
    return 2 * parts["weights"] + parts["AdamW"] + (parts["EMA"] if ema else 0)


def head(backbone: DiTBackbone, vocabulary_size: int, positions: int, *, compiled: bool) -> int:
    """Return the bytes of a chunk of logits on a GPU, the head's gradient, and the head's input with its gradient.

    A chunk has three float32 tensors: the log-probabilities, their gradient, and the gradient of the logits. With
    compilation, it has two bf16 tensors: the logits and their gradient.
    """
    width = backbone.shape[1]
    cut = chunks.cuts(positions, chunks.ON_ACCELERATOR // vocabulary_size)[0]
    logits = (2 * 2 if compiled else 3 * 4) * (cut.stop - cut.start) * vocabulary_size
    return logits + 4 * vocabulary_size * width + 8 * positions * width


_MASK_RATE = 0.5  # assumed fraction of masked tokens
_RECOMPUTE, _SHARD = ("backbone.checkpoint_activations = true",), ('train.sharding = "full"',)


@attrs.frozen(kw_only=True)
class Cost:
    """The estimated cost of a training run on GPUs."""

    gpus: int
    gpu: str  # its name in `GPUS`
    utilisation: float  # fraction of the peak FLOP/s that is used
    weights: int  # of the backbone
    weights_estimator: int  # of the importance estimator, if the objective trains one
    vocabulary_size: int
    tokens: int  # of training text, in all steps
    flops: float  # of the model and the importance estimator (docs/results/scale.md), in all steps
    rows: int  # sequences per micro-batch on each GPU
    memory_compiled: int  # bytes on each GPU with `train.compile` and AdamW
    memory_eager: int  # bytes on each GPU without `train.compile`
    fits: bool  # whether `rows` fit into the memory of each GPU, with the experiment's `train.compile`
    rows_that_fit: int  # `rows`, halved until they fit; 0 if not even one fits
    changes: tuple[str, ...]  # the keys to set so that training fits; empty if it does, or if none suffice
    checkpoint: int  # bytes of a checkpoint on disk, with AdamW
    seconds: float  # of training
    dollars: float  # for all GPUs during that time


def cost(
    experiment: Experiment,
    *,
    gpus: int = 1,
    gpu: str = "H100",
    utilisation: float = 0.4,
    price: float = 3.0,
    vocabulary: int | None = None,
) -> Cost:
    """Return the estimated cost of training an experiment on GPUs.

    Args:
        experiment: must use the `dit` backbone. Half of the tokens are assumed to be masked, unless the objective
            predicts all tokens.
        gpus: number of GPUs that share the batch.
        gpu: a name in `GPUS` or a short form of one.
        utilisation: fraction of the peak FLOP/s that training reaches.
        price: dollars per GPU hour.
        vocabulary: vocabulary size V (default: that of the tokenizer, if it can be determined).

    Raises:
        UserError: if the backbone or GPU is not supported, `gpus` does not divide batch and lanes, or V is unknown.
    """
    gpu, spec, length = gpu_named(gpu), experiment.train, experiment.data.length
    backbone, estimator, size = _backbone(experiment), _learned(experiment), _vocabulary_size(experiment, vocabulary)
    if spec.batch_size % gpus:
        raise UserError(f"--gpus {gpus} does not divide train.batch_size = {spec.batch_size}; change one of them")
    if experiment.data.lanes % gpus:
        raise UserError(f"--gpus {gpus} does not divide data.lanes = {experiment.data.lanes}; change one of them")
    read, tokens = experiment.parts["objective"].network_input(experiment)
    at_once = spec.rows_at_once(gpus)
    rows = spec.batch_size // gpus if at_once == "auto" else at_once
    width = _width_read(experiment)
    learned = estimator.weights(size, width, length) if estimator else 0

    def memory_of(rows: int, compiled: bool, sharded: bool, backbone: DiTBackbone = backbone) -> int:
        positions = max(1, round(experiment.parts["objective"].logit_share(_MASK_RATE) * rows * length))
        shape = rows * read // spec.batch_size, tokens, positions
        of_estimator = sum(state(learned).values()) // (gpus if sharded else 1) + 2 * learned
        if estimator:
            of_estimator += estimator.activations(rows, length, width) + (not sharded) * buckets(learned, gpus)
        return of_estimator + memory(backbone, size, *shape, gpus=gpus, sharded=sharded, compiled=compiled)

    def most_rows(sharded: bool, backbone: DiTBackbone = backbone) -> int:
        fitting = rows
        while fitting and memory_of(fitting, spec.compile is not False, sharded, backbone) > 1e9 * GPUS[gpu].memory:
            fitting //= 2
        return fitting

    # The changes in the order of docs/how-to/large-runs.md.
    sharded = spec.sharding == "full"
    recompute = attrs.evolve(cast("Any", backbone), checkpoint_activations=True)
    tries = [((), most_rows(sharded)), (_RECOMPUTE, most_rows(sharded, recompute))]
    if gpus > 1 and getattr(experiment.parts["optimizer"], "shardable", False):
        tries += [(_SHARD, most_rows(True)), ((*_RECOMPUTE, *_SHARD), most_rows(True, recompute))]
    fitting = tries[0][1]
    if at_once == "auto":  # training finds this number itself
        rows = fitting or 1
    changes, fits = next(((keys, at_most) for keys, at_most in tries if at_most), ((), rows))
    smaller = (f"train.microbatch_size = {fits}",) if fits < rows else ()
    flops = training_flops(experiment, size)
    seconds = flops / (gpus * 1e12 * GPUS[gpu].peak * utilisation)
    return Cost(
        gpus=gpus,
        gpu=gpu,
        utilisation=utilisation,
        weights=backbone.weights(size),
        weights_estimator=learned,
        vocabulary_size=size,
        tokens=spec.steps * spec.batch_size * length,
        flops=flops,
        rows=rows,
        memory_compiled=memory_of(rows, True, sharded),
        memory_eager=memory_of(rows, False, sharded),
        fits=fitting == rows,
        rows_that_fit=fitting,
        changes=(*changes, *smaller),
        checkpoint=checkpoint_size(backbone.weights(size) + learned, ema=spec.ema_decay > 0),
        seconds=seconds,
        dollars=seconds / 3600 * gpus * price,
    )


def training_flops(experiment: Experiment, vocabulary_size: int) -> float:
    """Return the FLOPs of all steps, including those of a trained importance estimator."""
    spec, estimator = experiment.train, _learned(experiment)
    step = step_flops(experiment, vocabulary_size, _MASK_RATE) or 0.0
    if estimator:
        step += 3 * estimator.flops(spec.batch_size, experiment.data.length, _width_read(experiment))
    return spec.steps * step


@attrs.frozen
class CPUCost:
    """The estimated time of all training steps of a run on this machine's CPU."""

    seconds: float
    flops_per_second: float  # measured
    threads: int


def cpu_cost(experiment: Experiment, vocabulary: int | None = None) -> CPUCost:
    """Return the estimated time of training on this CPU, from the measured FLOP/s of a small network (takes seconds).

    It has the experiment's width, head and length, and at most two layers; a backbone except `dit` raises `UserError`.
    """
    backbone, length, size = _backbone(experiment), experiment.data.length, _vocabulary_size(experiment, vocabulary)
    layers = min(2, backbone.shape[0])
    small = evolve(backbone, layers=layers, ngram_prior=0, output_bias="none", dropout=0.0)
    # Use as many sequences as a batch has, unless that takes more than about a second.
    row = 3 * small.flops(size, 1, length, length // 2)
    rows = max(1, min(experiment.train.batch_size, round(_MEASURED / row)))
    with torch.random.fork_rng():
        network: Any = small.build(Context(vocabulary_size=size, length=length)).train()
        tokens = torch.randint(size, (rows, length))
    chosen = torch.arange(rows * (length // 2))
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 5:  # the first one allocates
        begun = time.perf_counter()
        logits = network.head(network(tokens).flatten(0, 1)[chosen])
        torch.nn.functional.cross_entropy(logits, tokens.flatten()[chosen]).backward()
        seconds.append(time.perf_counter() - begun)
    rate = rows * row / min(seconds)
    return CPUCost(training_flops(experiment, size) / rate, rate, torch.get_num_threads())


_MEASURED = 5e10  # FLOPs


def _backbone(experiment: Experiment) -> DiTBackbone:
    backbone = experiment.parts.get("backbone")
    if isinstance(backbone, DiTBackbone):
        return backbone
    raise UserError(
        "--dry-run: only the backbone 'dit' is supported, and this experiment uses "
        f"{getattr(backbone, 'name', None)!r}; profile some steps on the device instead: atat train … --profile 20"
    )


def _width_read(experiment: Experiment) -> int:
    """Return how many numbers the importance estimator reads per position."""
    backbone, estimator = _backbone(experiment), _learned(experiment)
    width = backbone.shape[1]
    return width if estimator is None else estimator.width_read(width, backbone.ngram_prior)


def _learned(experiment: Experiment) -> Estimator | None:
    """Return the importance estimator if the objective trains one."""
    estimator: Estimator | None = experiment.parts.get("estimator")
    uses = "estimator" in experiment.parts["objective"].uses
    return estimator if estimator is not None and uses and estimator.learns else None


def _vocabulary_size(experiment: Experiment, said: int | None) -> int:
    """Return `said` or, without it, V from the tokenizer's parameters, the tokenizer itself, or its published size."""
    tokenizer = experiment.parts["tokenizer"]
    if said or (said := getattr(tokenizer, "vocabulary_size", None)):
        return int(said)
    try:
        return int(tokenizer.train(lambda: iter(())).vocabulary_size)
    except UserError as error:
        if (known := published_size(getattr(tokenizer, "path", ""))) is not None:
            return known
        raise UserError(f"{error}; or pass --vocab-size") from None
