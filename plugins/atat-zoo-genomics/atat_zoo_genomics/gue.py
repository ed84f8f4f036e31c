"""Scores on the tasks of GUE, from local files, of a fine-tuned run and of a logistic regression on 6-mers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from atat_zoo.system.errors import UserError, nearest
from atat_zoo_genomics.corpora import bases, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from atat_zoo.generation.model import Model

    Predict = Callable[[Sequence[str]], NDArray[np.int64]]


class Task(NamedTuple):
    """Task of GUE (Zhou et al., arXiv:2306.15006, table 1)."""

    folder: str  # in GUE's archive, with train.csv, dev.csv and test.csv
    bases: int  # maximum number of bases in a sequence
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
NEEDS = "gue requires the package scikit-learn; install it with `pip install 'atat-zoo-genomics[gue]'`"
# Values of C, the inverse regularisation strength of the logistic regression, which is chosen on dev.
_STRENGTHS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


class Examples(NamedTuple):
    """Sequences in the letters A, C, G, T and N, and their class numbers."""

    texts: list[str]
    labels: NDArray[np.int64]  # [n]


class Recipe(NamedTuple):
    """Hyperparameters for fine-tuning the network with a classification head."""

    epochs: int = 2
    batch_size: int = 128
    learning_rate: float = 2e-3


def find(task: str, folder: Path, split: str) -> Path:
    """Return the file for a split (`train`, `dev` or `test`) in GUE's folder or the task's, or raise a `UserError`."""
    if task not in TASKS:
        raise UserError(f"unknown task {task!r}{nearest(task, list(TASKS))} (tasks: {', '.join(TASKS)})")
    names = (f"{TASKS[task].folder}/{split}.csv", f"{task}.{split}.csv", f"{split}.csv")
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise UserError(f"{folder} has none of {', '.join(names)}, plain or .gz; pass the folder with {task}'s files")


def read(task: str, folder: Path, split: str) -> Examples:
    """Return the examples in a split, or raise a `UserError` that names a line with invalid content."""
    import numpy as np

    path, texts, labels = find(task, folder, split), [], []
    for number, (text, label) in rows(path, ["sequence", "label"]):
        if label not in map(str, range(TASKS[task].classes)):
            most = TASKS[task].classes - 1
            raise UserError(
                f"{path}, line {number}: the label {label!r} is not one of 0 to {most}; copy the file again"
            )
        if not text:
            raise UserError(f"{path}, line {number}: the sequence is empty; remove the row")
        texts.append(bases(text, path, number))
        labels.append(int(label))
    if not texts:
        raise UserError(f"{path} has no examples; copy the file again")
    return Examples(texts, np.array(labels))


def score(task: str, found: NDArray[np.int64], wanted: NDArray[np.int64]) -> float:
    """Return the score in a task's metric for predicted classes [n] and true classes [n]."""
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
    """Train the models for a task, and return a dict from model name to scores on `split`: one per seed, if it has one.

    The models are a logistic regression, which has no seed, the fine-tuned run and, if `scratch` is set, its network
    trained from random weights. A missing or unsuitable file or run, or missing scikit-learn, raises a `UserError`.
    """
    if not find_spec("sklearn"):
        raise UserError(NEEDS)
    from atat_zoo.generation.model import Model

    train, dev, held_out = (read(task, data, name) for name in ("train", "dev", split))
    model = Model.from_run(run)

    def measured(predict: Predict) -> float:
        return score(task, predict(held_out.texts), held_out.labels)

    found = {"6-mers, logistic regression": [measured(by_kmers(task, train, dev))]}
    starts = {"the run, fine-tuned": True} | ({"its network trained from scratch": False} if scratch else {})
    for title, trained in starts.items():
        found[title] = [measured(fitted(task, model, train, seed, recipe, trained=trained)) for seed in seeds]
    return found


def by_kmers(task: str, train: Examples, dev: Examples, k: int = 6) -> Predict:
    """Fit logistic regressions on k-mer counts, and return the classifier whose regularisation is best on `dev`."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    counts = CountVectorizer(analyzer="char", ngram_range=(k, k), lowercase=False)
    seen, asked = counts.fit_transform(train.texts), counts.transform(dev.texts)
    models = [LogisticRegression(C=strength, max_iter=10_000).fit(seen, train.labels) for strength in _STRENGTHS]
    best = max(models, key=lambda model: score(task, model.predict(asked), dev.labels))
    return lambda texts: best.predict(counts.transform(texts))


def fitted(task: str, model: Model, train: Examples, seed: int, recipe: Recipe, *, trained: bool) -> Predict:
    """Fine-tune a copy of a run's network with a classification head; return a function from sequences to classes [n].

    Training starts from random weights unless `trained` is set. A longer sequence than the run's raises a `UserError`.
    """
    import torch

    from atat_zoo.evaluation.tasks import fine_tuning

    def tokens_of(texts: Sequence[str]) -> list[list[int]]:
        ids = model.tokenizer.encode_batch(texts)
        if (longest := max(map(len, ids))) > model.context.length:
            raise UserError(
                f"{task} has a sequence of {longest} tokens, longer than the run's {model.context.length}; "
                f"train a run with data.length = {longest}"
            )
        return ids

    predict = fine_tuning.fine_tuned(
        model,
        tokens_of(train.texts),
        torch.from_numpy(train.labels),
        fine_tuning.Recipe(**recipe._asdict()),
        outputs=TASKS[task].classes,
        seed=seed,
        trained=trained,
        attends=False,  # pads with masks
    )
    return lambda texts: predict(tokens_of(texts)).argmax(-1).numpy()
