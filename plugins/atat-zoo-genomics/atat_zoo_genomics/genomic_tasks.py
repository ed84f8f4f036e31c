"""The tasks `gue` and `genomic_benchmarks`, which fine-tune a run's network with a classification head."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task
from atat_zoo.registry import component, component_base, param
from atat_zoo.system.errors import UserError, nearest
from atat_zoo_genomics import gue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model

AVERAGE = "average"
_METRICS = {"mcc": "Matthews' correlation", "f1": "F1, mean over classes"}

# The number of classes of each dataset. Classes have the names of their folders, and are numbered alphabetically.
BENCHMARKS = {
    "dummy_mouse_enhancers_ensembl": 2,
    "demo_coding_vs_intergenomic_seqs": 2,
    "demo_human_or_worm": 2,
    "human_enhancers_cohn": 2,
    "human_enhancers_ensembl": 2,
    "human_ensembl_regulatory": 3,
    "human_nontata_promoters": 2,
    "human_ocr_ensembl": 2,
}
_SOURCE = "the package genomic-benchmarks (github.com/ML-Bioinfo-CEITEC/genomic_benchmarks): download_dataset(name)"


@component_base
class _FineTuned(Task):
    """Base class for both tasks, which selects datasets and trains the classification head."""

    only: tuple[str, ...] = param((), help="names of the datasets to evaluate; default: all")
    epochs: int = param(2, help="number of passes over the training sequences", ge=1)
    batch_size: int = param(128, help="sequences per training step", ge=1)
    learning_rate: float = param(2e-3, help="peak learning rate", gt=0)

    def _check(self, known: Iterable[str]) -> None:
        names = list(known)
        for name in self.only:
            if name not in names:
                raise ValueError(f"only: unknown dataset {name!r}{nearest(name, names)} (datasets: {', '.join(names)})")


@component
class GueTask(_FineTuned):
    """The 28 datasets of GUE: after fine-tuning on each, the test score in the dataset's metric, and the mean score.

    `python -m atat_zoo_genomics gue` compares the network with a logistic regression on 6-mers for one dataset. The
    standard error is over seeds. A sequence that is longer than the run's training sequences is an error.
    """

    name = "gue"
    summary = "GUE: 28 DNA datasets and their average, after fine-tuning with a classification head"
    refs = ("arXiv:2306.15006",)

    path: str = param("GUE", help="folder of the extracted GUE archive")
    seeds: int = param(1, help="number of training runs per dataset, with consecutive seeds", ge=1)

    def __attrs_post_init__(self) -> None:
        self._check(gue.TASKS)

    @override
    def absent(self) -> Iterator[str]:
        if not find_spec("sklearn"):
            yield gue.NEEDS
        for name in self.only or gue.TASKS:
            for split in ("train", "test"):
                try:
                    gue.find(name, Path(self.path), split)
                except UserError as error:
                    yield f"{error}; download GUE from github.com/MAGICS-LAB/DNABERT_2"

    @override
    def inputs(self, experiment: Experiment) -> Any:
        from atat_zoo.experiment.runs import sha256_of

        names = [(name, split) for name in self.only or gue.TASKS for split in ("train", "test")]
        return {f"{name}.{split}": sha256_of(gue.find(name, Path(self.path), split)) for name, split in names}

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        recipe = gue.Recipe(self.epochs, self.batch_size, self.learning_rate)
        data = {
            name: [gue.read(name, Path(self.path), split) for split in ("train", "test")]
            for name in self.only or gue.TASKS
        }
        values: dict[str, list[float]] = {name: [] for name in data}
        for i in range(self.seeds):
            for number, (name, (train, test)) in enumerate(data.items()):
                predict = gue.fitted(name, model, train, seed + i, recipe, trained=True)
                values[name].append(gue.score(name, predict(test.texts), test.labels))
                if progress:
                    progress(i * len(data) + number + 1, self.seeds * len(data))
        metrics = {name: gue.TASKS[name].metric for name in data}
        return {
            **{f"{name} {metrics[name]}": _score(_METRICS[metrics[name]], each) for name, each in values.items()},
            AVERAGE: _averaged(list(values.values())),
        }


@component
class GenomicBenchmarksTask(_FineTuned):
    """Accuracies on the eight Genomic Benchmarks (Grešová et al., BMC Genomic Data 24, 2023), with cross-validation.

    The seed determines how the training sequences are divided into folds. For each fold, the network is fine-tuned with
    a classification head on the other folds, and evaluated on this fold and on the dataset's test sequences. Scores are
    averaged over folds, with a standard error over folds. `average` is the mean test accuracy over
    datasets. Sequences are truncated to the length of the run's training sequences.
    """

    name = "genomic_benchmarks"
    summary = "eight Genomic Benchmarks and their average, cross-validated with a classification head"
    refs = ("doi:10.1186/s12863-023-01123-8",)

    path: str = param("genomic_benchmarks", help="folder with one subfolder per dataset: {train,test}/CLASS/*.txt")
    folds: int = param(5, help="number of cross-validation folds", ge=2)

    def __attrs_post_init__(self) -> None:
        self._check(BENCHMARKS)

    @property
    def names(self) -> Sequence[str]:
        """Names of the datasets to evaluate."""
        return self.only or tuple(BENCHMARKS)

    @override
    def absent(self) -> Iterator[str]:
        missing = []
        for name in self.names:
            for split in ("train", "test"):
                folder = Path(self.path) / name / split
                classes = sorted({file.parent for file in folder.glob("*/*.txt")})
                if len(classes) != BENCHMARKS[name]:
                    missing.append(f"{folder} has {len(classes)} class folders instead of {BENCHMARKS[name]}")
        if missing:
            yield f"{'; '.join(missing)}; download the datasets with {_SOURCE}"

    @override
    def inputs(self, experiment: Experiment) -> Any:
        import hashlib

        digests = {}
        for name in self.names:
            digest = hashlib.sha256()
            for file in sorted((Path(self.path) / name).glob("*/*/*.txt")):
                text = file.read_bytes()
                digest.update(f"{file.relative_to(self.path)} {len(text)}\n".encode() + text)
            digests[name] = digest.hexdigest()
        return digests

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import torch

        from atat_zoo.evaluation.tasks.fine_tuning import Recipe, fine_tuned, score

        recipe = Recipe(epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate)
        data = {name: [self._read(model, name, split) for split in ("train", "test")] for name in self.names}
        scores, tests = {}, []
        for number, (name, ((rows, labels), (test, wanted))) in enumerate(data.items()):
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
            left_out, of_test = [], []
            for fold in range(self.folds):
                held, rest = order[fold :: self.folds], order[torch.arange(len(order)) % self.folds != fold]
                how: dict[str, Any] = {"outputs": BENCHMARKS[name], "seed": seed + fold, "attends": False}
                predict = fine_tuned(model, [rows[i] for i in rest.tolist()], labels[rest], recipe, **how)
                for values, some, truth in (
                    (left_out, [rows[i] for i in held.tolist()], labels[held]),
                    (of_test, test, wanted),
                ):
                    values.append(score("accuracy", predict(some).argmax(-1), truth.tolist()))
                if progress:
                    progress(number * self.folds + fold + 1, len(data) * self.folds)
            scores |= {f"{name} test": _score("accuracy", of_test), f"{name} left out": _score("accuracy", left_out)}
            tests.append(of_test)
        return {**scores, AVERAGE: _averaged(tests)}

    def _read(self, model: Model, name: str, split: str) -> tuple[list[list[int]], Tensor]:
        """Return the token sequences in a split and their class numbers, int64 [n]."""
        import torch

        from atat_zoo_genomics.corpora import bases

        root = Path(self.path) / name / split
        files = sorted(root.glob("*/*.txt"))
        classes = sorted({file.parent.name for file in files})
        texts = [bases(file.read_text(encoding="utf-8").strip(), file, 1) for file in files]
        for file, text in zip(files, texts, strict=True):
            if not text:
                raise UserError(f"{file} contains no sequence; copy the file again")
        rows = [row[: model.context.length] for row in model.tokenizer.encode_batch(texts)]
        if split == "train" and len(rows) < self.folds:
            raise UserError(
                f"{root} has {len(rows)} sequences for folds = {self.folds}; lower folds, or copy the folder again"
            )
        return rows, torch.tensor([classes.index(file.parent.name) for file in files])


def _score(quantity: str, values: Sequence[float]) -> Score:
    return Score.over(quantity, values, of="fine-tunings in their order" if len(values) > 1 else "")


def _averaged(values: Sequence[Sequence[float]]) -> Score:
    """Return the mean over training runs of the average score over datasets, given values per dataset and run."""
    return _score("mean of the datasets' scores", [fmean(each) for each in zip(*values, strict=True)])
