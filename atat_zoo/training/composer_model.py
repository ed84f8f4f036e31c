"""The model that Composer trains: the wrapped objective, its metrics, and the state updates of its components."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from composer import Callback, Logger, State
from composer.models import ComposerModel
from composer.utils import dist
from torch import Tensor, nn
from torchmetrics.aggregation import CatMetric

from atat_zoo.diffusion.statistics import spearman
from atat_zoo.modeling.backbones.ngram_prior_module import ngram_prior_counts
from atat_zoo.modeling.objectives import Batch
from atat_zoo.system.devices import move_to
from atat_zoo.system.errors import UserError

# The items that each mean averages: rows of the batch, its masked tokens, or its maskable tokens.
MEANS = {
    "diffusion_loss": "rows",
    "importance_loss": "rows",
    "reverse_loss": "rows",
    "cross_entropy": "masked",
    "mask_rate": "maskable",
    "mask_rate_target": "maskable",
}
RATE_BINS = 20


class StepMeters:
    """The metrics of one step, collected over its micro-batches; all ranks must call `compute`, which combines them."""

    def __init__(self, detailed: bool = False) -> None:
        """Create empty meters; with `detailed`, they also keep the values that `details` and `histograms` need."""
        # For each name, a sum and its number of items, float32 [2]. torchmetrics' mean checks each value for NaN, which
        # makes the host wait; without this check, torchmetrics ignores the weights.
        self.means: dict[str, Tensor] = {}
        self.detailed = detailed
        # Values are kept for all tokens, with masks of the masked and maskable ones: selecting would make the host
        # wait.
        names = ("importance", "token_loss", "masked", "maskable", "mask_rates")
        self.values = {name: CatMetric(nan_strategy="disable") for name in names}

    def reset(self) -> None:
        """Clear the values of the previous step."""
        self.means = {}
        for meter in self.values.values():
            meter.reset()

    def update(self, figures: dict[str, Tensor]) -> None:
        """Add the metrics that an objective returns for a micro-batch."""
        masked = figures["masked"]
        for name, over in MEANS.items():
            if name in figures:
                weight = masked.new_full((), len(masked), dtype=torch.int64) if over == "rows" else figures[over].sum()
                total = torch.stack([figures[name].detach().float() * weight, weight])
                self.means[name] = self.means[name] + total if name in self.means else total
        added = {"mask_rates": figures["rates"].float().flatten()} if "rates" in figures else {}
        if self.detailed or "importance" in figures:
            added |= {name: figures[name].float() for name in ("importance", "token_loss") if name in figures}
            added |= {name: figures[name] for name in ("masked", "maskable")}
        for name, values in added.items():
            self.values[name].to(masked.device).update(values.detach())

    def among(self, which: str, *names: str) -> list[Tensor]:
        """Return values `names` of the tokens in mask `which` of all ranks, float32 [N]; all ranks must call this."""
        where = self.values[which].compute().bool()
        return [self.values[name].compute()[where] for name in names]

    def details(self) -> dict[str, float]:
        """Return mean and standard deviation of the importance of maskable tokens, or {}; all ranks must call this."""
        if not self.values["importance"].value:
            return {}
        importance = self.among("maskable", "importance")[0].double()
        return {"importance_mean": float(importance.mean()), "importance_spread": float(importance.std(correction=0))}

    def histograms(self) -> dict[str, Tensor]:
        """Return this rank's mask rates, and importance and loss of its masked tokens, each float32 [N] on the CPU."""
        mine = {name: torch.cat([*meter.value]).cpu() for name, meter in self.values.items() if meter.value}
        where, _ = mine.pop("masked").bool(), mine.pop("maskable")
        return {name: values if name == "mask_rates" else values[where] for name, values in mine.items()}

    def compute(self) -> dict[str, Any]:
        """Return a dict from metric names to values, where None stands for an undefined correlation.

        `mask_rates` counts the step's mask rates in each of 20 equal bins of [0, 1].
        """
        figures: dict[str, Any] = {}
        if self.means:
            sums = torch.stack([*self.means.values()])
            sum_over_ranks(sums)
            figures = dict(zip(self.means, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))
        if self.values["mask_rates"].value:
            drawn = self.values["mask_rates"].compute().cpu()
            figures["mask_rates"] = torch.histc(drawn, RATE_BINS, 0, 1).long().tolist()
        if self.values["importance"].value:
            rho = spearman(*self.among("masked", "importance", "token_loss"))
            figures["importance_spearman"] = None if rho != rho else rho
        return figures


class ZooModel(ComposerModel):
    """A Composer model around an `ObjectiveModule`; all modules with weights run inside `forward`, as DDP requires."""

    def __init__(self, objective: nn.Module, steps: int, bf16: bool, detailed: bool = False) -> None:
        super().__init__()
        self.bf16 = bf16
        self.objective: Any = objective
        # Every rank counts the same text, so DDP need not broadcast the counts at each forward pass.
        self._ddp_params_and_buffers_to_ignore = [f"objective.{name}" for name in ngram_prior_counts(objective)]
        self.steps = steps
        self.step = 0
        self.meters = StepMeters(detailed)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of a micro-batch, including `loss`."""
        rows = Batch(
            tokens=batch["tokens"],
            maskable=batch["maskable"],
            index=batch["index"],
            mean_maskable=batch["mean_maskable"][0],
            documents=batch.get("documents"),
            progress=self.step / self.steps,
        )
        # Composer supports bf16 only on CUDA; a CPU with bf16 instructions trains twice as fast with it.
        device = rows.tokens.device
        own = self.bf16 and device.type != "cuda"
        with torch.autocast(device.type, torch.bfloat16) if own else nullcontext():
            figures: dict[str, Tensor] = self.objective.loss(rows)
        return {**figures, "loss": move_to(figures["loss"], device)}

    def loss(self, outputs: dict[str, Tensor], batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss, after adding the metrics of the micro-batch to those of the step."""
        self.meters.update(outputs)
        return outputs["loss"]

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        """Raise an error, because `atat_zoo.evaluation`, not Composer's evaluation loop, computes the bound."""
        raise RuntimeError("evaluate with atat_zoo.evaluation, which computes the bound")


class Progress(Callback):
    """A callback that sets the model's training progress and updates the state of its components at each step."""

    def __init__(self, model: ZooModel) -> None:
        self.model, self.updating = model, -1

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Prepare a step, or its repetition for lack of memory; raise a `UserError` if its weight update had begun."""
        self.model.step = int(state.timestamp.batch)
        if self.updating == self.model.step:
            raise UserError(
                f"out of GPU memory in the optimizer's update at step {self.updating + 1}, where smaller micro-batches "
                "do not help; use a smaller backbone, or an optimizer with less state"
            )
        self.model.meters.reset()
        self.model.objective.begin_step()

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Mark the gradients as complete, before the optimizer updates the weights."""
        self.updating = self.model.step

    def batch_end(self, state: State, logger: Logger) -> None:
        """Pass the step's statistics, summed over ranks, to the stateful components."""
        self.model.objective.end_step(sum_over_ranks, int(state.timestamp.batch) / self.model.steps)


class SkippedRows(Callback):
    """A callback that counts the rows skipped in damaged shards since training began, and logs them as `skipped`."""

    def __init__(self, message: Callable[[str], None]) -> None:
        self.message, self.count = message, 0

    def batch_start(self, state: State, logger: Logger) -> None:
        """Count the rows without maskable tokens in the global batch, and warn once if there are any."""
        rows = (~state.batch["maskable"].any(1)).sum()
        sum_over_ranks(rows)
        if rows and not self.count:
            self.message(
                "some training shards are damaged; their rows are skipped and counted as `skipped` in metrics.jsonl; "
                "to find the first damaged shard, run `atat data info FOLDER --full`"
            )
        self.count += int(rows)
        logger.log_metrics({"skipped": self.count})

    def state_dict(self) -> dict[str, Any]:
        """Return the count summed over all ranks."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the count from a checkpoint."""
        self.count = state["count"]


def prepare(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch with `mean_maskable`, the global batch's mean number of maskable tokens per row, float32 [B].

    This mean normalises the loss over the global batch for any number of ranks and micro-batches.
    """
    mean = batch["maskable"].sum(1).float().mean()
    if dist.get_world_size() > 1:
        dist.all_reduce(mean)
        mean = mean / dist.get_world_size()
    return {**batch, "mean_maskable": mean.clamp(min=1.0).expand(len(batch["tokens"]))}


def sum_over_ranks(value: Tensor) -> None:
    """Sum a tensor over the ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(value, reduce_operation="SUM")


def largest_over_ranks(number: int, device: torch.device) -> int:
    """Return the largest of the numbers of all ranks; all ranks must call this function."""
    if dist.get_world_size() == 1:
        return number
    largest = torch.tensor([number], device=device)
    dist.all_reduce(largest, reduce_operation="MAX")
    return int(largest.item())


def device_of_state(state: State) -> torch.device:
    """Return the device of the weights."""
    parameter: Tensor = next(state.model.parameters())
    return parameter.device
