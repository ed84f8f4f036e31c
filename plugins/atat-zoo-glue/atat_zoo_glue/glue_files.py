"""The files of GLUE's nine tasks, either as GLUE ships them (train.tsv, dev.tsv) or from the hub (Parquet)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from atat_zoo.system import parsing
from atat_zoo.system.errors import UserError, clip

Name = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
SOURCE = "https://gluebenchmark.com/tasks or the dataset nyu-mll/glue on the Hugging Face hub"
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")


class GlueProblem(NamedTuple):
    """A GLUE task: its text columns, metrics, classes (empty for regression) and held-out files."""

    texts: tuple[str, ...]
    metrics: tuple[str, ...]
    classes: tuple[str, ...] = ("0", "1")
    held_out: tuple[str, ...] = ("",)  # suffixes of `dev` and `validation`


PROBLEMS: Mapping[Name, GlueProblem] = {
    "cola": GlueProblem(("sentence",), ("matthews",)),
    "sst2": GlueProblem(("sentence",), ("accuracy",)),
    "mrpc": GlueProblem(_PAIR, ("accuracy", "f1")),
    "stsb": GlueProblem(_PAIR, ("pearson", "spearman"), ()),
    "qqp": GlueProblem(("question1", "question2"), ("accuracy", "f1")),
    "mnli": GlueProblem(_PAIR, ("accuracy",), ("entailment", "neutral", "contradiction"), ("_matched", "_mismatched")),
    "qnli": GlueProblem(("question", "sentence"), ("accuracy",), _ENTAILMENT),
    "rte": GlueProblem(_PAIR, ("accuracy",), _ENTAILMENT),
    "wnli": GlueProblem(_PAIR, ("accuracy",)),
}
# Column names that differ between GLUE's tables and the hub's.
_RENAMED = {
    "#1 String": "sentence1",
    "#2 String": "sentence2",
    "premise": "sentence1",
    "hypothesis": "sentence2",
    "Quality": "label",
    "is_duplicate": "label",
    "gold_label": "label",
    "score": "label",
}
_COLA = ("source", "label", "mark", "sentence")  # the only table without a header line


class Examples(NamedTuple):
    """Texts and labels: n tuples of one or two texts, and n class indices or regression targets."""

    texts: list[tuple[str, ...]]
    labels: list[float]


def folder_of(problem: Name, root: Path) -> Path:
    """Return the path of a task's folder, spelled `SST-2` or `sst2`, in GLUE's folder; the path may not exist."""
    inside = sorted(root.iterdir()) if root.is_dir() else []
    return next((path for path in inside if path.name.lower().replace("-", "") == problem), root / problem)


def files_of(problem: Name, root: Path, split: str) -> list[Path]:
    """Return the files of a split (`train`, `dev`; for MNLI `dev_matched`, `dev_mismatched`), or [] if it has none."""
    folder = folder_of(problem, root)
    return next((found for name in _patterns(split) if (found := sorted(folder.glob(name)))), [])


def _patterns(split: str) -> tuple[str, ...]:
    return f"{split}.tsv", f"{split.replace('dev', 'validation')}*.parquet", f"{split}*.parquet"


def absent(problems: Sequence[Name], root: Path) -> Iterator[str]:
    """Yield one message that names all missing files of the tasks, or nothing if none is missing."""
    missing = []
    for problem in problems:
        splits = ("train", *(f"dev{ending}" for ending in PROBLEMS[problem].held_out))
        found = {split: files_of(problem, root, split) for split in splits}
        missing += [f"{folder_of(problem, root)}/{split}.tsv" for split, files in found.items() if not files]
    if missing:
        have = f"cannot find {', '.join(map(clip, missing))}, or Parquet files in their place"
        yield f"{have}; download GLUE from {SOURCE}, and set `path` to its folder"


def read(problem: Name, root: Path, split: str) -> Examples:
    """Return the examples of a split as named by `splits_of`, without lines that lack a column or have too many.

    Raises:
        UserError: if the files are missing or do not belong to this task.
    """
    spec = PROBLEMS[problem]
    paths = files_of(problem, root, split)
    if not paths:
        raise UserError(
            f"{folder_of(problem, root)} does not contain any of {', '.join(_patterns(split))}; "
            f"download GLUE from {SOURCE}"
        )
    number = {name: float(i) for i, name in enumerate(spec.classes)}
    number |= {str(i): float(i) for i in range(len(spec.classes))}
    texts, labels = [], []
    for path in paths:
        for *text, label in _rows(path, problem):
            if any(each is None for each in (*text, label)):
                continue
            value = number.get(str(label), math.nan) if spec.classes else _number(label)
            if not math.isfinite(value):
                known = ", ".join(spec.classes) or "numbers"
                raise UserError(
                    f"{path}: the label {clip(label)!r} is not one of {problem}'s labels ({known}); copy the file again"
                )
            texts.append(tuple(map(str, text)))
            labels.append(value)
    if not texts:
        raise UserError(f"{paths[0]} does not contain any examples; copy the file again")
    return Examples(texts, labels)


def _number(label: Any) -> float:
    try:
        return float(label)
    except ValueError:
        return math.nan


def _rows(path: Path, problem: Name) -> Iterator[Sequence[Any]]:
    """Yield the texts and the label of each line, with None for a missing column."""
    columns = (*PROBLEMS[problem].texts, "label")
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            table = parquet.read_table(path)
            named = dict(zip([_RENAMED.get(name, name) for name in table.column_names], table.columns, strict=True))
            yield from zip(*(named[column].to_pylist() for column in columns), strict=True)
            return
        lines = [line.removesuffix("\r").split("\t") for line in parsing.read(path).decode("utf-8-sig").split("\n")]
        head = list(_COLA) if problem == "cola" else [_RENAMED.get(name, name) for name in lines.pop(0)]
        places = [head.index(column) for column in columns]
        for line in lines:
            if any(line) and len(line) <= len(head):  # a longer line has a tab inside a text
                yield [line[place] if place < len(line) else None for place in places]
    except (OSError, ValueError, KeyError) as error:
        problem_is = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a table of {problem}: {problem_is}; copy the file again") from None
