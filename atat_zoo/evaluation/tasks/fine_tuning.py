"""Fine-tuning of a network with a head that predicts a class or a number for each text.

There are n texts of at most L tokens, C classes, and a network of width D. The head reads the mean and the maximum of
each hidden channel over a text. All random numbers are a function of the seed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from atat_zoo.diffusion.dropout import set_keys
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.generation.model import Model
from atat_zoo.generation.spreading import is_spread
from atat_zoo.modeling.objectives import assemble
from atat_zoo.system.devices import SPREAD, move_to
from atat_zoo.system.errors import UserError

Rows = Sequence[Sequence[int]]  # the tokens of texts
Progress = Callable[[int, int], None] | None


@attrs.frozen(kw_only=True)
class Recipe:
    """The hyperparameters of fine-tuning with AdamW, 10 % warmup and linear decay to zero."""

    epochs: int
    batch_size: int
    learning_rate: float


def steps_of(texts: int, recipe: Recipe) -> int:
    """Return the number of optimizer steps."""
    return recipe.epochs * math.ceil(texts / recipe.batch_size)


class NetworkWithHead(nn.Module):
    """A module that maps rows of tokens to the logits of C classes, or to a number if C is 1."""

    def __init__(self, network: Any, mask_id: int, outputs: int, *, fill: int | None, seed: int) -> None:
        """Wrap a network, whose weights are also trained; for `fill`, see `attends` in `fine_tuned`."""
        super().__init__()
        self.network, self.mask_id, self.fill = network, mask_id, fill
        with torch.random.fork_rng(devices=[]):  # the layer draws its initial weights from the global generator
            torch.manual_seed(seed)
            self.head = nn.Linear(2 * network.embedding.embedding_dim, outputs)

    def forward(self, rows: Rows) -> Tensor:
        """Return the logits, float32 [n, C], for rows that contain at least one token each."""
        device, lengths = self.head.weight.device, torch.tensor([len(row) for row in rows])
        tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, self.mask_id)
        short = 0 if self.fill is None else max(0, self.fill - tokens.shape[1])
        tokens = functional.pad(tokens, (0, short), value=self.mask_id).to(device)
        here = torch.arange(tokens.shape[1], device=device) < lengths[:, None].to(device)
        t = torch.zeros(len(tokens), device=tokens.device) if self.network.reads_time else None  # without noise
        if self.fill is None and not bool(here.all()):
            hidden = self.network(tokens, t, attention=here[:, None, None].expand(-1, 1, here.shape[1], -1))
        else:
            hidden = self.network(tokens, t)
        mean = (hidden * here[..., None]).sum(1) / here.sum(1, keepdim=True)
        largest = hidden.masked_fill(~here[..., None], -torch.inf).amax(1)
        return self.head(torch.cat([mean, largest], dim=-1)).float()


def fine_tuned(
    model: Model,
    rows: Rows,
    labels: Tensor,
    recipe: Recipe,
    *,
    outputs: int,
    seed: int,
    trained: bool = True,
    attends: bool = True,
    progress: Progress = None,
) -> Callable[[Rows], Tensor]:
    """Train a model's network with a head, and return a function from rows to logits, float32 [n, C] on the CPU.

    Args:
        model: The model whose network is copied; it is not changed. If it is on several devices, raise `UserError`.
        rows: The tokens of n texts, at least one token each.
        labels: [n], either int64 class indices or float numbers.
        recipe: The hyperparameters of training.
        outputs: C, or 1 for a number.
        seed: Seed of the head, the order of the texts, dropout, and random initial weights.
        trained: Whether to start from the model's weights (True) or from random weights (False).
        attends: Whether to hide the padding of shorter rows with an attention mask. If False, the network reads masks
            in place of padding, up to at least the length of the longest of `rows`. Use this for networks without
            attention, or for networks that are faster without an attention mask.
        progress: A function that is called with the completed and total number of steps.
    """
    module: Any = model.module
    if is_spread(module):
        raise UserError(f"fine-tuning needs the whole model on one device; leave out --device {SPREAD}")
    if not trained:
        module = assemble(model.experiment, attrs.evolve(model.context, seed=seed))
    attends &= not model.experiment.parts["backbone"].both_ways_only
    fill = None if attends else max(map(len, rows))
    network = copy.deepcopy(module.backbone)
    whole = NetworkWithHead(network, model.context.mask_id, outputs, fill=fill, seed=seed).to(model.device)
    weights = [p for p in whole.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.01)
    steps = steps_of(len(rows), recipe)

    def rate(step: int) -> float:
        return min((step + 1) / max(1, steps // 10), 1 - step / steps)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    draw = torch.Generator().manual_seed(seed)
    whole.train()
    done = 0
    for epoch in range(recipe.epochs):
        for some in torch.randperm(len(rows), generator=draw).split(recipe.batch_size):
            set_keys(network, sequence_keys(seed, "dropout", (epoch * len(rows) + some).to(model.device)))
            logits = whole([rows[i] for i in some.tolist()])
            loss = loss_of(logits, move_to(labels[some], model.device))
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if progress:
                progress(done, steps)
    whole.eval()

    def predict(rows: Rows) -> Tensor:
        # Batch texts of similar lengths; the logits of a text do not depend on the other texts.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        logits = torch.zeros(len(rows), outputs)
        with torch.no_grad():
            for some in torch.tensor(order).split(256):
                logits[some] = whole([rows[i] for i in some.tolist()]).cpu()
        return logits

    return predict


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy for labels that are classes, or the mean squared error for numbers."""
    if labels.is_floating_point():
        return functional.mse_loss(logits[:, 0], labels.float())
    return functional.cross_entropy(logits, labels)


def score(metric: str, predicted: Tensor, labels: Sequence[float]) -> float:
    """Return accuracy, f1, matthews, pearson or spearman of predictions [n]; a correlation with a constant is 0."""
    from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
    from torchmetrics.functional.classification import binary_f1_score, binary_matthews_corrcoef, multiclass_accuracy

    wanted = torch.tensor(labels, dtype=torch.float64)
    found = predicted.double()
    if metric == "accuracy":
        found, wanted = found.long(), wanted.long()
        classes = max(2, 1 + int(torch.cat([found, wanted]).max()))
        return float(multiclass_accuracy(found, wanted, num_classes=classes, average="micro"))
    if metric == "f1":
        return float(binary_f1_score(found.long(), wanted.long()))
    if len(found.unique()) < 2 or len(wanted.unique()) < 2:
        return 0.0
    if metric == "matthews":
        return float(binary_matthews_corrcoef(found.long(), wanted.long()))
    return float((pearson_corrcoef if metric == "pearson" else spearman_corrcoef)(found, wanted))
