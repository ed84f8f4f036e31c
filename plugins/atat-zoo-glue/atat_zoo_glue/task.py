"""GLUE (arXiv:1804.07461): fine-tunes a run's network with a head on nine language understanding tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task
from atat_zoo.registry import component, param
from atat_zoo_glue.glue_files import PROBLEMS, Examples, Name, absent, files_of, read

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model

AVERAGE = "average"
MAJORITY = "average of the most frequent class"
NOTE = (
    "Published BERT scores use a head on the first token, with a pooler, token types and dropout; most are on the "
    "test files, whose labels GLUE does not publish, and many exclude WNLI. This task has not been run on published "
    "weights, so compare scores only between runs."
)


@component
class GlueTask(Task):
    """Fine-tunes a run's network with a new head for each task and seed, and evaluates it on the dev files.

    The head reads the mean and maximum of each hidden channel over a text, or over a pair of texts a and b with the
    tokenizer's special tokens: BOS a EOS b EOS. The hyperparameters are BERT's (arXiv:1810.04805, section 4.1); a small
    network with little pre-training needs a larger learning rate. The metrics are GLUE's own. `average` is the
    mean of the tasks' mean scores; a second average is that of always predicting the most frequent training label, or
    the mean for STS-B. Standard errors are over seeds.

    `notes` lists the differences from the protocol of published scores.
    """

    name = "glue"
    summary = "GLUE: scores on nine tasks and their average, after fine-tuning with a classification head"
    refs = ("arXiv:1804.07461", "arXiv:1810.04805")

    path: str = param(
        "glue", help="folder with a subfolder per task, which contains train.tsv and dev.tsv or the hub's Parquet files"
    )
    tasks: tuple[Name, ...] = param(tuple(PROBLEMS), help="tasks to evaluate")
    seeds: int = param(1, help="number of fine-tuning runs per task, with consecutive seeds", ge=1)
    epochs: int = param(3, help="number of epochs", ge=1)
    batch_size: int = param(32, help="number of examples per training step", ge=1)
    learning_rate: float = param(2e-5, help="peak learning rate", gt=0)
    length: int = param(
        128, help="maximum number of tokens per example (at most the run's length); longer examples are truncated", ge=8
    )

    def __attrs_post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty; name a task, or leave tasks out for all nine")

    @override
    def absent(self) -> Iterator[str]:
        yield from absent(self.tasks, Path(self.path))

    @override
    def inputs(self, experiment: Experiment) -> Any:
        from atat_zoo.experiment.runs import sha256_of

        root = Path(self.path)
        files = [f for each in self.tasks for split in splits_of(each) for f in files_of(each, root, split)]
        return {str(file.relative_to(root)): sha256_of(file) for file in files}

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        root = Path(self.path)
        data = {each: [read(each, root, split) for split in splits_of(each)] for each in self.tasks}
        usual = _averaged({each: _metrics(each, _most_frequent(each, data[each]), data[each]) for each in data})
        found = [self._of_seed(model, data, seed, i, progress) for i in range(self.seeds)]
        of = f"trainings from seed {seed}" if self.seeds > 1 else ""
        scores = {}
        for name in found[0]:
            quantity = QUANTITIES[name.split()[-1].partition("_")[0]]
            scores[name] = Score.over(quantity, [each[name] for each in found], of=of)
        return scores | {MAJORITY: Score(quantity=QUANTITIES[AVERAGE], value=usual[AVERAGE], items=1)}

    @override
    def notes(self, model: Model) -> tuple[str, ...]:
        return (NOTE,)

    def _of_seed(
        self, model: Model, data: Mapping[Name, list[Examples]], seed: int, i: int, progress: Progress
    ) -> dict[str, float]:
        """Return the scores of the i-th training run on each task, and their average."""
        import torch

        from atat_zoo.evaluation.tasks.fine_tuning import Recipe, fine_tuned, steps_of

        recipe = Recipe(epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate)
        steps = {problem: steps_of(len(train.labels), recipe) for problem, (train, *_) in data.items()}
        before, total = i * sum(steps.values()), self.seeds * sum(steps.values())
        later = progress and (lambda done, _: progress(before + done, total))
        found = {}
        for problem, examples in data.items():
            classes = len(PROBLEMS[problem].classes)
            train, *held_out = (framed(model, each.texts, self.length) for each in examples)
            predict = fine_tuned(
                model,
                train,
                torch.tensor(examples[0].labels, dtype=torch.int64 if classes else torch.float32),
                recipe,
                outputs=classes or 1,
                seed=seed + i,
                progress=later,
            )
            logits = [predict(rows) for rows in held_out]
            predicted = [each.argmax(-1) if classes else each[:, 0] for each in logits]
            found[problem] = _metrics(problem, predicted, examples)
            before += steps[problem]
        return _averaged(found)


QUANTITIES = {
    "matthews": "Matthews' correlation",
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    AVERAGE: "mean of the tasks' scores",
}


def splits_of(problem: Name) -> list[str]:
    """Return the names of a task's splits: `train`, followed by the held-out ones."""
    return ["train", *(f"dev{ending}" for ending in PROBLEMS[problem].held_out)]


def framed(model: Model, texts: Sequence[tuple[str, ...]], length: int) -> list[list[int]]:
    """Return the tokens of each text or pair of texts, at most `length` and at most the run's length.

    BOS comes first and EOS ends each text, if the tokenizer has them; without EOS, a mask token separates two texts. If
    a pair is too long, its longer text is truncated first.
    """
    tokenizer = model.tokenizer
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    last = [] if tokenizer.eos is None else [tokenizer.eos]
    parts = [tokenizer.encode_batch(list(column)) for column in zip(*texts, strict=True)]
    between = last or [model.context.mask_id] * (len(parts) > 1)
    room = min(length, model.context.length) - len(first) - len(between) * (len(parts) - 1) - len(last)
    rows = []
    for row in zip(*parts, strict=True):
        sizes = _cut([len(part) for part in row], room)
        cut = [part[:size] for part, size in zip(row, sizes, strict=True)]
        joined = cut[0] + (between + cut[1] if len(cut) > 1 else [])
        rows.append([*first, *joined, *last] or [model.context.mask_id])
    return rows


def _cut(sizes: list[int], room: int) -> list[int]:
    """Return the lengths of one or two texts after truncation to `room` tokens in total, the longer text first."""
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    half, (one, other) = room // 2, sizes
    one = min(one, max(room - other, room - half))
    return [one, min(other, room - one)]


def _most_frequent(problem: Name, examples: Sequence[Examples]) -> list[Tensor]:
    """Return predictions for each held-out file: always the most frequent training label, or the mean for numbers."""
    import torch

    train, *held_out = examples
    label = max(sorted(set(train.labels)), key=train.labels.count) if PROBLEMS[problem].classes else fmean(train.labels)
    return [torch.full((len(each.labels),), label) for each in held_out]


def _metrics(problem: Name, predicted: Sequence[Tensor], examples: Sequence[Examples]) -> dict[str, float]:
    """Return a task's scores by name, given the predicted classes or numbers for each held-out file."""
    from atat_zoo.evaluation.tasks.fine_tuning import score

    scores = {}
    for ending, found, each in zip(PROBLEMS[problem].held_out, predicted, examples[1:], strict=True):
        for metric in PROBLEMS[problem].metrics:
            scores[f"{problem} {metric}{ending}"] = score(metric, found, each.labels)
    return scores


def _averaged(found: Mapping[Name, Mapping[str, float]]) -> dict[str, float]:
    """Return all scores in one dict, together with the mean of the tasks' mean scores."""
    scores = {name: value for each in found.values() for name, value in each.items()}
    return scores | {AVERAGE: fmean(fmean(each.values()) for each in found.values())}
