"""The tasks of GUE on local files: a run with a head, beside a logistic regression on 6-mers."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.errors import UserError, nearest
from atat_zoo_genomics.corpora import bases, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from atat_zoo.model import Model

    Predict = Callable[[Sequence[str]], NDArray[np.int64]]


class Task(NamedTuple):
    """A task of GUE (Zhou et al., arXiv:2306.15006, table 1)."""

    folder: str  # in GUE's archive, with train.csv, dev.csv and test.csv
    bases: int  # of a sequence, at most
    classes: int = 2
    metric: str = "mcc"  # Matthews' correlation coefficient; "f1" is the mean over classes


_MARKS = ("H3", "H3K14ac", "H3K36me3", "H3K4me1", "H3K4me2", "H3K4me3", "H3K79me3", "H3K9ac", "H4", "H4ac")
TASKS: dict[str, Task] = {
    **{mark: Task(f"EMP/{mark}", 500) for mark in _MARKS},
    **{f"mouse_{i}": Task(f"mouse/{i}", 100) for i in range(5)},
    **{f"prom_300_{kind}": Task(f"prom/prom_300_{kind}", 300) for kind in ("all", "notata", "tata")},
    **{f"prom_core_{kind}": Task(f"prom/prom_core_{kind}", 70) for kind in ("all", "notata", "tata")},
    "splice_reconstructed": Task("splice/reconstructed", 400, 3),
    **{f"tf_{i}": Task(f"tf/{i}", 100) for i in range(5)},
    "virus_covid": Task("virus/covid", 1000, 9, "f1"),
}
# C of the logistic regression, of which dev chooses.
_STRENGTHS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


class Examples(NamedTuple):
    """Sequences and the numbers of their classes."""

    texts: list[str]
    labels: NDArray[np.int64]  # [n]


class Recipe(NamedTuple):
    """How a head is trained, with the network."""

    epochs: int = 2
    batch_size: int = 128
    learning_rate: float = 2e-3


def find(task: str, folder: Path, split: str) -> Path:
    """Return the file of a split, `train`, `dev` or `test`, in the folder of GUE, of the task, or of named files.

    Raises:
        UserError: when there is no such task, or no such file.
    """
    if task not in TASKS:
        raise UserError(f"there is no task {task!r}{nearest(task, list(TASKS))} (there are: {', '.join(TASKS)})")
    names = (f"{TASKS[task].folder}/{split}.csv", f"{task}.{split}.csv", f"{split}.csv")
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise UserError(f"{folder} has none of {', '.join(names)}, nor with .gz; name the folder of {task}'s files")


def read(task: str, folder: Path, split: str) -> Examples:
    """Return the examples of a split.

    Raises:
        UserError: when the file is not there or is not of this task; the message names the line.
    """
    import numpy as np

    path, texts, labels = find(task, folder, split), [], []
    for number, (text, label) in rows(path, ["sequence", "label"]):
        if label not in map(str, range(TASKS[task].classes)):
            most = TASKS[task].classes - 1
            raise UserError(f"{path}, line {number}: the label {label!r} is no number from 0 to {most}; copy it again")
        if not text:
            raise UserError(f"{path}, line {number}: the sequence is empty; take the row out")
        texts.append(bases(text, path, number))
        labels.append(int(label))
    if not texts:
        raise UserError(f"{path} has no examples; copy it again")
    return Examples(texts, np.array(labels))


def score(task: str, found: NDArray[np.int64], wanted: NDArray[np.int64]) -> float:
    """Return the metric of a task for classes found and wanted, [n] both."""
    from sklearn import metrics

    if TASKS[task].metric == "mcc":
        return float(metrics.matthews_corrcoef(wanted, found))
    return float(metrics.f1_score(wanted, found, average="macro", zero_division=0))


def gue(
    task: str,
    data: Path,
    run: Path,
    *,
    seeds: Sequence[int],
    recipe: Recipe,
    split: str = "test",
    scratch: bool = False,
) -> dict[str, list[float]]:
    """Return the metric on a split, by what predicts: a number for each seed, or one where nothing is drawn.

    Args:
        task: of `TASKS`.
        data: the folder of its files.
        run: the run folder of a model with the tokenizer `dna`.
        seeds: of the head and of the order of the examples; of the weights, too, where they begin at random.
        recipe: how it is trained.
        split: what is measured: `test`, or `dev`, by which to choose a recipe.
        scratch: whether to train the same network from random weights, too.

    Raises:
        UserError: when a file or the run is not there, or does not fit.
    """
    if not find_spec("sklearn"):
        raise UserError("gue needs the package scikit-learn; install it with `pip install 'atat-zoo-genomics[gue]'`")
    from atat_zoo.model import Model

    train, dev, held_out = (read(task, data, name) for name in ("train", "dev", split))
    model = Model.from_run(run)

    def measured(predict: Predict) -> float:
        return score(task, predict(held_out.texts), held_out.labels)

    found = {"6-mers, logistic regression": [measured(by_kmers(task, train, dev))]}
    starts = {"the run, fine-tuned": True} | ({"its network from random weights": False} if scratch else {})
    for title, trained in starts.items():
        found[title] = [measured(fitted(task, model, train, seed, recipe, trained=trained)) for seed in seeds]
    return found


def by_kmers(task: str, train: Examples, dev: Examples, k: int = 6) -> Predict:
    """Return a logistic regression on how often each k-mer occurs; its strength is the best of several on `dev`."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    counts = CountVectorizer(analyzer="char", ngram_range=(k, k), lowercase=False)
    seen, asked = counts.fit_transform(train.texts), counts.transform(dev.texts)
    models = [LogisticRegression(C=strength, max_iter=10_000).fit(seen, train.labels) for strength in _STRENGTHS]
    best = max(models, key=lambda model: score(task, model.predict(asked), dev.labels))
    return lambda texts: best.predict(counts.transform(texts))


def fitted(task: str, model: Model, train: Examples, seed: int, recipe: Recipe, *, trained: bool) -> Predict:
    """Train a run's network with a head for the classes, and return what predicts.

    The head reads the mean and the largest value of each hidden channel. Shorter sequences are filled with masks.

    Args:
        task: of `TASKS`.
        model: the run.
        train: the examples.
        seed: see `gue`.
        recipe: how it is trained.
        trained: whether it begins with the run's weights, or with random ones.
    """
    import copy

    import attrs
    import torch
    from torch import nn

    from atat_zoo.objectives.assembly import assemble

    module: Any = model.module
    if not trained:
        module = assemble(model.experiment, attrs.evolve(model.context, seed=seed))
    network = copy.deepcopy(module.backbone)
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(2 * network.embedding.embedding_dim, TASKS[task].classes)
    mask_id = model.context.mask_id

    def tokens_of(texts: Sequence[str]) -> Tensor:
        ids = [torch.tensor(each) for each in model.tokenizer.encode_batch(texts)]
        if (longest := max(map(len, ids))) > model.context.length:
            raise UserError(
                f"{task} has a sequence of {longest} tokens, and the run has learned {model.context.length}; "
                f"train one with data.length = {longest}"
            )
        return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=mask_id)

    def logits(tokens: Tensor) -> Tensor:
        t = torch.zeros(len(tokens)) if network.reads_time else None
        hidden, here = network(tokens, t), (tokens != mask_id)[..., None]
        mean = (hidden * here).sum(1) / here.sum(1).clamp(min=1)
        return head(torch.cat([mean, hidden.masked_fill(~here, -torch.inf).amax(1)], dim=-1))

    tokens, labels = tokens_of(train.texts), torch.from_numpy(train.labels)
    weights = [*(p for p in network.parameters() if p.requires_grad), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.01)
    steps = recipe.epochs * math.ceil(len(tokens) / recipe.batch_size)

    def rate(step: int) -> float:
        """Return the share of the learning rate: up in a tenth of the steps, and down to zero."""
        return min((step + 1) / max(1, steps // 10), 1 - step / steps)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for _ in range(recipe.epochs):
        for some in torch.split(torch.randperm(len(tokens), generator=draw), recipe.batch_size):
            loss = nn.functional.cross_entropy(logits(tokens[some]), labels[some])
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    network.eval()

    def predict(texts: Sequence[str]) -> NDArray[np.int64]:
        with torch.no_grad():
            found = torch.cat([logits(some) for some in torch.split(tokens_of(texts), 512)])
        return found.argmax(-1).numpy()

    return predict
