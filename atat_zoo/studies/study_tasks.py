"""Tasks of a study: the scores of its runs, and the differences between arms, seed by seed."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch

from atat_zoo.evaluation.results.intervals import Interval, of_seeds_and_sequences
from atat_zoo.evaluation.results.store import finite
from atat_zoo.evaluation.results.task_results import Score, TaskResult, notes_of
from atat_zoo.evaluation.tasks import measure_tasks, title
from atat_zoo.generation.model import Model
from atat_zoo.registry.spec import unstructure
from atat_zoo.studies.processes import claimed
from atat_zoo.studies.study_schema import Study, StudyRun

Table = dict[str, Any]
ByArm = dict[str, dict[int, list[TaskResult]]]  # arm, seed; a result for each task of the study


def measure(
    study: Study, run: StudyRun, *, device: str = "cpu", say: Callable[[str], None] = print
) -> list[TaskResult]:
    """Return the result of each task for a finished run; reuse saved ones, and wait for other processes."""
    said = set[str]()

    def progress(task: str, *_: int) -> None:
        if task not in said:
            said.add(task)
            say(f"{run.name}: task {task}")

    with claimed(run, wait=True):
        model = Model.from_run(run.path, device)
        return measure_tasks(study.held_out.tasks, model, run.path, seed=study.held_out.seed, progress=progress)


def tables(study: Study, found: ByArm) -> list[Table]:
    """Return a table per task with the scores of every arm by seed, and their differences paired by item."""
    return [
        {
            "task": title(task),
            "settings": unstructure(task),
            "seed": study.held_out.seed,
            "scores": list(_scores(study, {arm: _of(runs, number) for arm, runs in found.items()})),
            "notes": notes_of({arm: [each[number] for each in runs.values()] for arm, runs in found.items()}),
        }
        for number, task in enumerate(study.held_out.tasks)
    ]


def _of(runs: Mapping[int, list[TaskResult]], number: int) -> dict[int, Mapping[str, Score]]:
    return {seed: results[number].scores for seed, results in runs.items()}


def _scores(study: Study, by_arm: Mapping[str, Mapping[int, Mapping[str, Score]]]) -> Iterator[Table]:
    for name in dict.fromkeys(name for runs in by_arm.values() for scores in runs.values() for name in scores):
        of = {
            arm: {seed: scores[name] for seed, scores in runs.items() if name in scores} for arm, runs in by_arm.items()
        }
        first = next(score for scores in of.values() for score in scores.values())
        rows = [
            {
                "arm": arm,
                "seeds": list(scores),
                "items": [score.items for score in scores.values()],
                "values": [score.value for score in scores.values()],
                "stderrs": [score.stderr for score in scores.values()],
                "against": [
                    {"arm": other, **compare(scores, of[other])} for other in study.against(arm) if of.get(other)
                ],
            }
            for arm, scores in of.items()
            if scores
        ]
        about = {"quantity": first.quantity, "exponential": first.exponential, "published": dict(first.published)}
        yield {"score": name, **about, "rows": rows}


def nats_of(found: ByArm, study: Study) -> Iterator[Table]:
    """Yield the per-item sums and weights of every score, from which all intervals can be recomputed."""
    for arm, runs in found.items():
        for seed, results in runs.items():
            for task, result in zip(study.held_out.tasks, results, strict=True):
                for name, score in result.scores.items():
                    about = {"part": "tasks", "arm": arm, "seed": seed, "task": title(task), "score": name}
                    yield finite(about | {"sums": score.sums, "weights": score.weights})


def compare(one: Mapping[int, Score], other: Mapping[int, Score]) -> Table:
    """Return the differences between the mean scores of two arms over their common seeds.

    `over_items` is the bootstrap interval of the mean difference over seeds, or None if the items differ; `both` is the
    interval over seeds and items, or None for a single seed or without `over_items`.
    """
    pairs = {seed: (score, other[seed]) for seed, score in one.items() if seed in other}
    alike = all((a.quantity, a.of) == (b.quantity, b.of) for a, b in pairs.values())
    each = [a.mean - b.mean for a, b in pairs.values()] if alike else []
    each = each if all(map(math.isfinite, each)) else []
    averaged = [_averaged(scores) for scores in zip(*pairs.values(), strict=True)] if each else []
    mine, theirs = averaged or (None, None)
    over_items = mine.minus(theirs) if mine and theirs else None
    return {
        "seeds": list(pairs),
        "each": each,
        "over_items": _ends(over_items),
        "both": _ends(of_seeds_and_sequences(each, over_items) if over_items else None),
    }


def _averaged(scores: tuple[Score, ...]) -> Score | None:
    """Return the item-wise mean over seeds of scores on the same items."""
    if len({(score.of, score.weights) for score in scores}) > 1 or not scores[0].of:
        return None
    sums = torch.tensor([score.sums for score in scores], dtype=torch.float64).mean(0)
    return attrs.evolve(scores[0], sums=tuple(sums.tolist()))


def _ends(interval: Interval | None) -> Table | None:
    return attrs.asdict(interval) if interval else None
