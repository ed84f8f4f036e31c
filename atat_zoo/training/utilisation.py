"""Model FLOPs: how many a training step has, and the share of what the devices can do at most.

A step counts three times its forward pass, the backward pass being twice as much (Chowdhery et al., PaLM,
arXiv:2204.02311, appendix B), and with LoRA twice, as the weights have no gradients. As there, attention counts, in
full under a causal mask; embeddings, norms and anything else that is no matrix product do not; nor does what is
computed a second time to save memory. Unlike there, the head counts at the positions that need logits alone: those that
are masked. The importance estimator counts as nothing, so that its time lowers the figure.
"""

from typing import Any

import attrs
from composer.utils import dist

from atat_zoo.experiment import Experiment
from atat_zoo.system.devices import device_name

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
    if experiment.train.peak_flops is not None:
        return 1e12 * experiment.train.peak_flops
    peak = PEAKS.get(device_name(device).removeprefix("NVIDIA ").strip()) if bf16 else None
    return peak and 1e12 * peak


@attrs.frozen(eq=False)
class Utilisation:
    """The figures of a training on all ranks; `peak` is that of one device, FLOP/s, or None."""

    experiment: Experiment
    vocabulary_size: int
    peak: float | None

    def figures(self, line: dict[str, Any]) -> dict[str, float]:
        """Return `flops_per_second`, and `utilisation` in [0, 1], of a line of metrics; nothing where unknown."""
        rate, train = line.get("mask_rate"), self.experiment.train
        flops = None if rate is None else step_flops(self.experiment, self.vocabulary_size, rate)
        if flops is None:
            return {}
        steps = line["tokens_per_second"] / (train.batch_size * self.experiment.data.length)
        figures = {"flops_per_second": round(flops * steps, 1)}
        if self.peak is not None:
            figures["utilisation"] = round(flops * steps / (self.peak * dist.get_world_size()), 4)
        return figures
