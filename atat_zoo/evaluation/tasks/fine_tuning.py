"""Classes, or numbers, of texts by a head on a network's hidden states, trained together with it.

n texts of at most L tokens, C classes, D the network's width. The head reads the mean and the largest value of each
hidden channel over a text. Everything that is drawn is a function of the seed.
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
    """How a network and its head are trained: AdamW, a rate that rises in a tenth of the steps and falls to zero."""

    epochs: int
    batch_size: int
    learning_rate: float


def steps_of(texts: int, recipe: Recipe) -> int:
    """Return the number of optimizer steps."""
    return recipe.epochs * math.ceil(texts / recipe.batch_size)


class NetworkWithHead(nn.Module):
    """Rows of tokens to logits of C classes, or to a number where C is 1."""

    def __init__(self, network: Any, mask_id: int, outputs: int, *, fill: int | None, seed: int) -> None:
        """Take a network, whose weights are trained, too; for `fill` see `attends` of `fine_tuned`."""
        super().__init__()
        self.network, self.mask_id, self.fill = network, mask_id, fill
        with torch.random.fork_rng(devices=[]):  # the layer draws its first weights from the global generator
            torch.manual_seed(seed)
            self.head = nn.Linear(2 * network.embedding.embedding_dim, outputs)

    def forward(self, rows: Rows) -> Tensor:
        """Return logits float32 [n, C] of rows, each of one token at least."""
        device, lengths = self.head.weight.device, torch.tensor([len(row) for row in rows])
        tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, self.mask_id)
        short = 0 if self.fill is None else max(0, self.fill - tokens.shape[1])
        tokens = functional.pad(tokens, (0, short), value=self.mask_id).to(device)
        here = torch.arange(tokens.shape[1], device=device) < lengths[:, None].to(device)
        t = torch.zeros(len(tokens), device=tokens.device) if self.network.reads_time else None  # nothing is noisy
        if self.fill is None and not bool(here.all()):
            hidden = self.network(tokens, t, attention=here[:, None, None].expand(-1, 1, here.shape[1], -1))
        else:
            hidden = self.network(tokens, t)
        mean = (hidden * here[..., None]).sum(1) / here.sum(1, keepdim=True)
        largest = hidden.masked_fill(~here[..., None], -torch.inf).amax(1)
        logits: Tensor = self.head(torch.cat([mean, largest], dim=-1)).float()
        return logits


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
    """Train a model's network with a head, and return what predicts: rows to logits, float32 [n, C] on the CPU.

    Args:
        model: whose network it is; it does not change.
        rows: the tokens of n texts, each with one at least.
        labels: [n]; int64 for the number of the class, a float for a number.
        recipe: how it is trained.
        outputs: C, or 1 for a number.
        seed: of the head, of the order of the texts, of the dropout, and of the weights if these begin at random.
        trained: whether the network begins with the model's weights, or with random ones.
        attends: whether an attention mask hides what fills a shorter row. Otherwise the network reads masks there, to
            the length of the longest of `rows` at least: a network without attention, or one that is faster so.
        progress: is called with the steps that are done, and with all.
    """
    module: Any = model.module
    if is_spread(module):
        raise UserError(f"a task that trains needs the whole model on its device; leave --device {SPREAD} out")
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
        # Texts of about the same length together; a text's logits do not depend on the others.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        logits = torch.zeros(len(rows), outputs)
        with torch.no_grad():
            for some in torch.tensor(order).split(256):
                logits[some] = whole([rows[i] for i in some.tolist()]).cpu()
        return logits

    return predict


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of classes, or the squared error of numbers."""
    if labels.is_floating_point():
        return functional.mse_loss(logits[:, 0], labels.float())
    return functional.cross_entropy(logits, labels)


def score(metric: str, predicted: Tensor, labels: Sequence[float]) -> float:
    """Return a metric of predictions, classes or numbers [n]; a correlation with what does not vary is 0."""
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
