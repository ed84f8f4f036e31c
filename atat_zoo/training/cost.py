"""What a training computes, and takes on GPUs, by formula: FLOPs, memory, hours, money (docs/scale.md).

A step counts three times its forward pass, the backward pass being twice as much (Chowdhery et al., PaLM,
arXiv:2204.02311, appendix B), and with LoRA twice, as the weights have no gradients. As there, attention counts, in
full under a causal mask; embeddings, norms and anything else that is no matrix product do not; nor does what is
computed a second time to save memory. Unlike there, the head counts at the positions that need logits alone: those that
are masked. The importance estimator counts as nothing, so that its time lowers the figure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.objectives import chunks
from atat_zoo.system.devices import device_name
from atat_zoo.system.errors import UserError, clip, nearest

if TYPE_CHECKING:
    from atat_zoo.data.tokenizers import Tokenizer
    from atat_zoo.experiment import Experiment

# Dense bf16 TFLOP/s of a device, half of what a datasheet says “with sparsity”, by the name that its driver gives it,
# less the maker's. A name that is not here, such as that of a part of a GPU (MIG), has no peak. NVIDIA's datasheets:
PEAKS: dict[str, float] = {
    # “NVIDIA A100 Tensor Core GPU”
    **dict.fromkeys(("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100 80GB PCIe"), 312.0),
    # “NVIDIA H100 Tensor Core GPU”: SXM, PCIe, NVL
    "H100 80GB HBM3": 989.4,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.5,
    # “NVIDIA H200 Tensor Core GPU”: SXM, NVL
    "H200": 989.4,
    "H200 NVL": 835.5,
    "L40S": 362.05,  # “NVIDIA L40S”
    "L40": 181.05,  # “NVIDIA L40”
    "L4": 121.0,  # “NVIDIA L4 Tensor Core GPU”
    "A10": 125.0,  # “NVIDIA A10 Tensor Core GPU”
    "B200": 2250.0,  # “NVIDIA HGX Platform”, of eight
}


def step_flops(experiment: Experiment, vocabulary_size: int, mask_rate: float) -> float | None:
    """Return the model FLOPs of a step over the global batch; None for a backbone that has no formula.

    `mask_rate` is the share of the tokens that need logits.
    """
    backbone, objective = experiment.parts["backbone"], experiment.parts["objective"]
    length = experiment.data.length
    if not hasattr(backbone, "flops"):
        return None
    rows, tokens = objective.network_input(experiment)
    first = {"first": length} if backbone.returns_first else {}
    forward: float = backbone.flops(vocabulary_size, rows, tokens, mask_rate * rows * length, **first)
    return (2 if backbone.lora_rank else 3) * forward


def peak_flops(experiment: Experiment, device: str, bf16: bool) -> float | None:
    """Return the most FLOP/s of a device, a torch name; None where that is not known: on a CPU, or not in bf16."""
    if experiment.train.peak_tflops is not None:
        return 1e12 * experiment.train.peak_tflops
    peak = PEAKS.get(device_name(device).removeprefix("NVIDIA ").strip()) if bf16 else None
    return peak and 1e12 * peak


def utilisation(
    experiment: Experiment, vocabulary_size: int, peak: float | None, devices: int, line: dict[str, Any]
) -> dict[str, float]:
    """Return `flops_per_second`, and `utilisation` in [0, 1], of a line of metrics; nothing where unknown.

    `peak` is the FLOP/s of one of the devices, or None.
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
    """Return the bytes that a training holds for so many weights, in float32: AdamW has two moments of each."""
    return {"weights": 4 * weights, "gradients": 4 * weights, "AdamW": 8 * weights, "moving average": 4 * weights}


def buckets(weights: int, gpus: int) -> int:
    """Return the bytes of the buckets in which DDP sums gradients over GPUs: as Composer has it, a copy of them all."""
    return 4 * weights if gpus > 1 else 0


def activations(backbone: DiTBackbone, rows: int, length: int, *, compiled: bool) -> int:
    """Return the bytes that the layers keep from the forward pass for the backward pass, [rows, length] tokens at once.

    Under CUDA's autocast to bf16, of each layer and token, in widths D: in float32 what two norms read, compiled
    normalised; in bf16 2 norms, 3 queries, keys and values, 2 queries and keys that are normalised and rotated, 1
    attention, and twice the width of the feed-forward network. Eager, the norm of queries and keys besides has them in
    float32, as it reads and as it returns them, and dropout a byte for each entry of both branches; compiled they are
    computed and drawn again. Besides, statistics of norms and attention; and once, what the last norm has.
    """
    layers, width, heads = backbone.shape
    hidden = max(1, int(width * backbone.mlp_ratio))
    token = 4 * 2 * width + 2 * (8 * width + 2 * hidden)
    token += 0 if compiled else (4 * 4 + (2 if backbone.dropout else 0)) * width
    statistics = 4 * (4 + 4 * heads + heads)
    return rows * length * (layers * (token + statistics) + 4 * width + 8)


def casts(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes of the weights that autocast has cast to bf16 for a step: those of all matrix products."""
    return 2 * (backbone.matrices + vocabulary_size * backbone.shape[1])


def gathered(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes that a GPU has of weights which are sharded, besides its share of them.

    In float32, with their gradients, a layer, and what belongs to no layer, the head; in bf16 what autocast has cast of
    each layer, which autograd keeps for the backward pass.
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
    """Return the bytes on each GPU, which reads [rows, tokens] at once and needs logits at so many positions.

    Sharded, it has its share of weights, gradients, AdamW and moving average, and gathers a layer at a time (FSDP), in
    place of all of them (DDP).
    """
    weights = backbone.weights(vocabulary_size)
    kept = sum(state(weights).values())
    if sharded:
        kept = kept // gpus + gathered(backbone, vocabulary_size)
    else:
        kept += buckets(weights, gpus) + casts(backbone, vocabulary_size)
    seen = activations(backbone, rows, tokens, compiled=compiled)
    return kept + seen + head(backbone, vocabulary_size, positions, compiled=compiled)


def head(backbone: DiTBackbone, vocabulary_size: int, positions: int, *, compiled: bool) -> int:
    """Return the bytes of a chunk of logits on a GPU, of the head's gradient, and of what it reads, with its gradient.

    A chunk has three tensors of float32: log-probabilities, and the gradients of these and of the logits. Compiled it
    has two of bf16: the logits and their gradient.
    """
    width = backbone.shape[1]
    cut = chunks.cuts(positions, chunks.ON_ACCELERATOR // vocabulary_size)[0]
    logits = (2 * 2 if compiled else 3 * 4) * (cut.stop - cut.start) * vocabulary_size
    return logits + 4 * vocabulary_size * width + 8 * positions * width


@attrs.frozen(kw_only=True)
class Cost:
    """What a training takes, by formula."""

    gpus: int
    gpu: str  # of which kind
    utilisation: float  # the share of their peak that is used
    weights: int  # of the backbone; those of an importance estimator are not counted, here or below
    tokens: int  # of text that it reads, of all steps
    flops: float  # of the model (docs/scale.md), of all steps
    rows: int  # sequences at once on each GPU
    memory_compiled: int  # bytes of each GPU, with `train.compile`, and AdamW
    memory_eager: int  # the same without
    seconds: float  # of the training
    dollars: float  # of all GPUs for so long


def cost(
    experiment: Experiment,
    *,
    gpus: int = 1,
    gpu: str = "H100 80GB HBM3",
    utilisation: float = 0.4,
    price: float = 3.0,
    vocabulary: int | None = None,
) -> Cost:
    """Return what an experiment takes.

    Args:
        experiment: with the backbone dit. Half of the tokens are taken to be masked, unless its objective learns all.
        gpus: which the batch is divided among.
        gpu: their kind, a name in `PEAKS`.
        utilisation: share of the peak that is used.
        price: dollars of a GPU an hour.
        vocabulary: V, where the tokenizer's files are not here.

    Raises:
        UserError: if the backbone or the GPU has no formula, the GPUs do not divide the batch, or the tokenizer's files
            are not here.
    """
    backbone, spec, length = experiment.parts.get("backbone"), experiment.train, experiment.data.length
    objective, tokenizer = experiment.parts["objective"], experiment.parts["tokenizer"]
    if not isinstance(backbone, DiTBackbone):
        raise UserError("backbone: the formulas are for dit alone; measure another on the device, by --profile 20")
    if gpu not in PEAKS:
        raise UserError(
            f"--gpu: no peak is known of {clip(repr(gpu))}{nearest(gpu, list(PEAKS))} (known: {', '.join(PEAKS)})"
        )
    if spec.batch_size % gpus:
        raise UserError(f"train.batch_size: {spec.batch_size} does not divide among {gpus} GPUs; change it, or --gpus")
    # One that is trained says how large it will be; any other is what it is, without text.
    size: int = vocabulary or getattr(tokenizer, "vocabulary_size", None) or _untrained(tokenizer)
    share = 1.0 if objective.exact else 0.5
    read, tokens = objective.network_input(experiment)
    at_once = spec.rows_at_once(gpus)
    rows = spec.batch_size // gpus if at_once == "auto" else at_once
    shape = (backbone, size, rows * read // spec.batch_size, tokens, max(1, round(share * rows * length)))
    of_each = partial(memory, *shape, gpus=gpus, sharded=spec.sharding == "full")
    flops = spec.steps * (step_flops(experiment, size, share) or 0.0)
    seconds = flops / (gpus * 1e12 * PEAKS[gpu] * utilisation)
    return Cost(
        gpus=gpus,
        gpu=gpu,
        utilisation=utilisation,
        weights=backbone.weights(size),
        tokens=spec.steps * spec.batch_size * length,
        flops=flops,
        rows=rows,
        memory_compiled=of_each(compiled=True),
        memory_eager=of_each(compiled=False),
        seconds=seconds,
        dollars=seconds / 3600 * gpus * price,
    )


def _untrained(tokenizer: Tokenizer) -> int:
    try:
        return tokenizer.train(lambda: iter(())).vocabulary_size
    except UserError as error:
        raise UserError(f"{error}; or say by --vocab-size how many tokens it has") from None
