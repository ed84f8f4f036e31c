"""What metrics are while they are measured: `torchmetrics.Metric`s with sums of each sequence, for errors over these.

N predictions, V predictable tokens, B rows of a batch, n sequences, b bins.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric as TorchMetric
from torchmetrics import MetricCollection
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from atat_zoo.evaluation.metrics import Metric
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.modeling.diffusion.statistics import ratio
from atat_zoo.modeling.objectives import Observer


def brier(log_probs: Tensor, x: Tensor) -> Tensor:
    """Return Σ_v (p_v − 1[v = x])², [N]."""
    p = log_probs.exp()
    return p.square().sum(-1) - 2 * p.gather(-1, x[:, None])[:, 0] + 1


def among_top(log_probs: Tensor, x: Tensor, *, k: int) -> Tensor:
    """Return whether the true token is among the k most probable, [N] of 0 and 1."""
    return (log_probs.topk(min(k, log_probs.shape[1])).indices == x[:, None]).any(1).double()


class Metrics:
    """The metrics of an evaluation, by their titles."""

    def __init__(self, metrics: Iterable[Metric], device: torch.device | str) -> None:
        self.device = device
        self.built = {metric.title: metric.build().to(device) for metric in metrics}
        # It gives each what its `update` names.
        self.together = MetricCollection(dict(self.built), compute_groups=False)

    def observer(self, sequence: Tensor, counted: Tensor) -> Observer:
        """Return what is shown the predictions of a batch.

        Its rows are these sequences, int64 [B], of whose predictions those of the tokens that are `counted`, bool
        [B, L], have a weight.
        """
        sequence, counted = sequence.to(self.device), counted.to(self.device)

        def observe(*, weight: Tensor, row: Tensor, position: Tensor | None = None, **of_tokens: Tensor) -> None:
            weight = weight if position is None else weight * counted[row, position]
            self.show(weight=weight, row=row, sequence=sequence, **of_tokens)

        return observe

    def show(self, **what: Any) -> None:
        """Update them, each with what it names: see `Metric.build`."""
        self.together.update(**what)

    def show_nothing(self, vocabulary_size: int) -> None:
        """Show no predictions, in a process without sequences: in a group all must have the same states to gather."""
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        nothing = torch.zeros(0, vocabulary_size, device=self.device)
        self.show(log_probs=nothing, tokens=none, weight=none.double(), row=none, sequence=none)

    def values(self) -> dict[str, MetricValue]:
        """Return what they have found, in a process group together with those of the other processes."""
        found = {title: metric.compute() for title, metric in self.built.items()}
        return {
            title: value if isinstance(value, MetricValue) else MetricValue(value=float(value))
            for title, value in found.items()
        }


class SequenceSums(TorchMetric):
    """Sums over each sequence, or each text, float64 [n, C]."""

    full_state_update = False
    sequence: Any
    sums: Any

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sequence", default=[], dist_reduce_fx="cat")
        self.add_state("sums", default=[], dist_reduce_fx="cat")

    def add(self, sequence: Tensor, values: Tensor, row: Tensor | None = None) -> None:
        """Add values [N, C] in these rows of a batch, int64 [N], of these sequences, int64 [B]; of one each if None."""
        if row is not None:
            # The pieces of a batch are of the same sequences: they are added up where they are, without waiting for a
            # GPU to say which ones.
            if not (self.sequence and self.sequence[-1] is sequence):
                self.sequence.append(sequence)
                self.sums.append(values.new_zeros(len(sequence), values.shape[1]))
            self.sums[-1].index_add_(0, row, values)
        else:
            self.sequence.append(sequence.to(self.device))
            self.sums.append(values.to(self.device))

    def by_sequence(self) -> Tensor:
        """Return the sums of each sequence, float64 [n, C], in their order."""
        sequence, sums = dim_zero_cat(self.sequence), dim_zero_cat(self.sums)
        each, inverse = sequence.unique(return_inverse=True)
        return sums.new_zeros(len(each), sums.shape[1]).index_add_(0, inverse, sums)


class SequenceMean(SequenceSums):
    """The weighted mean of a score of each prediction, (log-probabilities [N, V], tokens [N]) → [N]."""

    def __init__(self, score: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.score = score

    @override
    def update(self, log_probs: Tensor, tokens: Tensor, weight: Tensor, row: Tensor, sequence: Tensor) -> None:
        score = self.score(log_probs, tokens).double()
        self.add(sequence, torch.stack([weight * score, weight], 1), row)

    @override
    def compute(self) -> MetricValue:
        value, error = ratio(*self.by_sequence().unbind(1))
        return MetricValue(value=value, stderr=error)


class Calibration(SequenceSums):
    """Weights, confidences and hits of each sequence by bins of the confidence, and what follows."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    @override
    def update(self, log_probs: Tensor, tokens: Tensor, weight: Tensor, row: Tensor, sequence: Tensor) -> None:
        best, guess = log_probs.double().max(1)
        confidence = best.exp()
        # (0, 1/b], (1/b, 2/b], … as in the literature.
        bin_ = ((confidence * self.bins).ceil().long() - 1).clamp(0, self.bins - 1)
        values = torch.stack([weight, weight * confidence, weight * (guess == tokens)], 1)  # [N, 3]
        every = values.new_zeros(len(values), self.bins, 3)
        every[torch.arange(len(values), device=values.device), bin_] = values
        self.add(sequence, every.flatten(1), row)

    @override
    def compute(self) -> MetricValue:
        each = self.by_sequence().view(-1, self.bins, 3)
        weight, confidence, hits = each.sum(0).unbind(1)
        # Where the confidence of a bin is above its accuracy it counts so in every sequence.
        gaps = ((confidence - hits).sign() * (each[..., 1] - each[..., 2])).sum(1)
        value, error = ratio(gaps, each[..., 0].sum(1))
        there = weight > 0
        share = weight / weight.sum()
        table = {
            "confidence": (confidence / weight)[there].tolist(),
            "accuracy": (hits / weight)[there].tolist(),
            "share": share[there].tolist(),
        }
        return MetricValue(value=value, stderr=error, table=table)
