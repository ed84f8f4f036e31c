"""The figures of a step, over its micro-batches and ranks, as torchmetrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchmetrics import MeanMetric, Metric

from atat_zoo.diffusion.statistics import spearman

if TYPE_CHECKING:
    from torch import Tensor

# What each mean is over: rows of the batch, its masked tokens, or its maskable ones.
MEANS = {
    "diffusion_loss": "rows",
    "importance_loss": "rows",
    "reverse_loss": "rows",
    "cross_entropy": "masked",
    "mask_rate": "maskable",
    "mask_rate_target": "maskable",
}


class Values(Metric):
    """All values of a step."""

    values: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("values", default=[], dist_reduce_fx="cat")

    def update(self, values: Tensor) -> None:
        """Take in a micro-batch's values, float32 [N]."""
        self.values.append(values)

    def compute(self) -> Tensor:
        """Return the values of every rank, [N]."""
        return torch.cat(self.values) if isinstance(self.values, list) else self.values


class StepMeters:
    """Means and a rank correlation, reset at every step; `compute` joins the ranks, so all must call it."""

    def __init__(self, detailed: bool = False) -> None:
        """Begin without a device, which the first micro-batch gives; `detailed` for `details` and `histograms`."""
        self.means: dict[str, MeanMetric] = {}
        self.detailed = detailed
        self.masked = {"importance": Values(), "token_loss": Values()}
        self.maskable_importance = Values()

    def reset(self) -> None:
        """Forget the step before."""
        for meter in (*self.means.values(), *self.masked.values(), self.maskable_importance):
            meter.reset()

    def update(self, figures: dict[str, Tensor]) -> None:
        """Take in the figures that an objective returns for a micro-batch."""
        masked = figures["masked"]
        for name, over in MEANS.items():
            if name not in figures:
                continue
            if name not in self.means:
                self.means[name] = MeanMetric(nan_strategy="ignore").to(masked.device)
            weight = len(masked) if over == "rows" else figures[over].sum()
            self.means[name].update(figures[name].detach(), weight)
        for name, values in self.masked.items():
            if name in figures and (self.detailed or "importance" in figures):
                values.to(masked.device).update(figures[name][masked].detach().float())
        if self.detailed and "importance" in figures:
            importance = figures["importance"][figures["maskable"]].detach().float()
            self.maskable_importance.to(masked.device).update(importance)

    def details(self) -> dict[str, float]:
        """Return mean and standard deviation of the importance over all maskable tokens; all ranks must call it."""
        if not self.maskable_importance.values:
            return {}
        importance = self.maskable_importance.compute().double()
        return {"importance_mean": float(importance.mean()), "importance_spread": float(importance.std(correction=0))}

    def histograms(self) -> dict[str, Tensor]:
        """Return this rank's importance and loss of masked tokens, float32 [N] on the CPU."""
        return {name: torch.cat(meter.values).cpu() for name, meter in self.masked.items() if meter.values}

    def compute(self) -> dict[str, float | None]:
        """Return the figures by name; the correlation is None where it does not exist."""
        figures: dict[str, float | None] = {name: float(meter.compute()) for name, meter in self.means.items()}
        if self.masked["importance"].values:
            rho = spearman(*(meter.compute() for meter in self.masked.values()))
            figures["importance_spearman"] = None if rho != rho else rho
        return figures
