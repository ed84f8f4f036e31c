"""The one place that runs tasks: each is measured once for the same weights, parameters and seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.errors import UserError
from atat_zoo.evaluation.results.store import finite, once
from atat_zoo.evaluation.results.tasks import Score, TaskResult
from atat_zoo.evaluation.tasks import Task, title
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.registry import problems_of
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atat_zoo.evaluation import StageProgress
    from atat_zoo.generation.model import Model


def measure_tasks(
    tasks: Iterable[Task],
    model: Model,
    run: str | Path,
    *,
    seed: int,
    leave_out: bool = False,
    progress: StageProgress = None,
) -> list[TaskResult]:
    """Measure `Model.from_run(run)` by tasks, and keep the results in the run folder; what is there is read.

    `progress` is called with the title of a task, and the completed and the total number of its items.

    Raises:
        UserError: when a task cannot measure the model; with `leave_out` that is a note in the place of its scores, as
            is what the task finds in the experiment.
    """
    tasks, folder = list(tasks), RunFolder(Path(run))
    if not tasks:
        return []
    weights = sha256_of(folder.model_at(model.step) / WEIGHTS)
    results = []
    for task in tasks:
        why = next((each.text for each in problems_of(task, model.experiment)), "") if leave_out else ""
        try:
            if why:
                raise UserError(why)
            results.append(_measured(task, model, folder, weights, seed, progress))
        except UserError as error:
            if not leave_out:
                raise
            about: Any = {"task": title(task), "step": model.step, "ema": model.experiment.train.ema > 0}
            settings, notes = {"task": unstructure(task), "seed": seed}, (f"no {title(task)}: {error}",)
            results.append(TaskResult(**about, settings=settings, scores={}, notes=notes))
    return results


def _measured(
    task: Task, model: Model, folder: RunFolder, weights: str, seed: int, progress: StageProgress
) -> TaskResult:
    settings = {
        "task": unstructure(task),
        "inputs": task.inputs(model.experiment),
        "seed": seed,
        "weights": weights,
    }

    def measure() -> dict[str, Any]:
        told = progress and partial(progress, title(task))
        found = task.measure(model, folder.path, seed=seed, progress=told)
        about = {"task": title(task), "step": model.step, "ema": model.experiment.train.ema > 0}
        scores = {name: finite(attrs.asdict(score)) for name, score in found.items() if isinstance(score, Score)}
        said = [sentence for sentence in found.values() if isinstance(sentence, str)]
        return {**about, "scores": scores, "notes": [*said, *task.notes(model)]}

    return once(folder, f"task-{task.name}", settings, TaskResult.from_table, measure, required=False)
