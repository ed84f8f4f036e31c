"""Tasks: scores of a trained model on held-out problems, computed once per weights, parameters and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs

from atat_zoo.evaluation.results.format import settings
from atat_zoo.evaluation.results.store import finite, once
from atat_zoo.evaluation.results.task_results import Score, TaskResult
from atat_zoo.experiment import conflicts_with
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.registry import Zoo, problems_of
from atat_zoo.registry.spec import Field, evolve, fields_of, unstructure
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress, StageProgress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model


class Task(Protocol):
    """The base class of components of the kind `task`; every method except `measure` has a default."""

    name: str
    reads_dialogues: ClassVar[bool] = False  # whether the task is for runs with data.format = "chat"

    def absent(self) -> Iterable[str]:
        """Yield a sentence for each missing file or package, including the command that installs it.

        This method is called before training and before a model is loaded, and must not import torch.
        """
        return ()

    def inputs(self, experiment: Experiment) -> Any:
        """Return what the scores depend on besides parameters, weights and seed, as a JSON value.

        Examples are the SHA-256 of a file and the experiment's sampler. Saved results with the same inputs are reused.
        """
        return None

    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> Mapping[str, Score | str]:
        """Return a dict from name to score; random numbers must be a function of the seed and the item's index.

        `Score.over` computes a score from the numbers of each item. A str in place of a score is a note, such as the
        time taken, and is not compared. `run` is the folder of the model's run. `progress` is called with the completed
        and total number of items.

        Raises:
            UserError: If the model cannot be evaluated for a reason that `check` could not find in the experiment.
        """
        ...

    def notes(self, model: Model) -> Iterable[str]:
        """Yield notes on the scores of a model, one per line."""
        return ()


def title(task: Task) -> str:
    """Return the name of a task with its non-default parameters, such as `infilling (gap = 3)`."""
    table = unstructure(task)
    fields = {field.name: field for field in fields_of(type(task))}
    chosen = settings({key: value for key, value in table.items() if key in fields and value != _default(fields[key])})
    return task.name + (f" ({chosen})" if chosen else "")


def _default(field: Field) -> Any:
    """Return a parameter's default as `unstructure` writes it, or a value that equals no other if it is required."""
    if field.kind and not field.many and isinstance(field.default, str | dict):
        return unstructure(Zoo.load().spec(field.kind, field.default))
    return list(field.default) if isinstance(field.default, tuple) else field.default


def conflicts_of(experiment: Experiment, **parts: Any) -> Iterable[Problem]:
    """Yield the conflicts of an experiment with other components, given by kind, such as a task's sampler."""
    # Leave out the experiment's tasks, because their checks call this function.
    yield from conflicts_with(attrs.evolve(experiment, evaluation=evolve(experiment.evaluation, tasks=())), parts)


def require(tasks: Iterable[Task], experiment: Experiment) -> None:
    """Raise `UserError` if a task lacks files or packages or cannot evaluate the experiment's models."""
    sentences = [
        f"task {title(task)}: {problem}"
        for task in tasks
        for problem in (*(each.text for each in problems_of(task, experiment)), *task.absent())
    ]
    if sentences:
        raise UserError("\n".join(sentences))


def sampling_inputs(sampler: Any, experiment: Experiment) -> list[Any]:
    """Return the `inputs` of a generation task: the sampler (default: the run's), the guidance and the corpus."""
    parts = experiment.parts
    settings = [unstructure(sampler or parts["sampler"]), unstructure(parts["guidance"])]
    return [*settings, parts["corpus"].fingerprint()]


def measure_tasks(
    tasks: Iterable[Task],
    model: Model,
    run: str | Path,
    *,
    seed: int,
    leave_out: bool = False,
    progress: StageProgress = None,
) -> list[TaskResult]:
    """Return the results of `Model.from_run(run)` on tasks: saved results, or new ones, which are saved in the run.

    `progress` is called with the title of a task and the completed and total number of its items.

    Raises:
        UserError: If a task cannot evaluate the model. With `leave_out`, its result has a note and no scores instead.
    """
    tasks, folder, results = list(tasks), RunFolder(Path(run)), []
    weights = sha256_of(folder.model_at(model.step) / WEIGHTS) if tasks else ""
    step, ema = model.step, model.experiment.train.ema_decay > 0
    for task in tasks:
        name, settings = title(task), {"task": unstructure(task), "seed": seed}

        def measure(task: Task = task, name: str = name) -> dict[str, Any]:
            found = task.measure(model, folder.path, seed=seed, progress=progress and partial(progress, name))
            scores = {key: finite(attrs.asdict(score)) for key, score in found.items() if isinstance(score, Score)}
            notes = [sentence for sentence in found.values() if isinstance(sentence, str)]
            about = {"task": name, "step": step, "ema": ema}
            return about | {"scores": scores, "notes": [*notes, *task.notes(model)]}

        try:
            if leave_out and (why := next(problems_of(task, model.experiment), None)):
                raise UserError(why.text)
            about = settings | {"inputs": task.inputs(model.experiment), "weights": weights}
            of_task = once(folder, f"task-{task.name}", about, TaskResult.from_table, measure, required=False)
        except UserError as error:
            if not leave_out:
                raise
            notes = (f"no {name}: {error}",)
            of_task = TaskResult(task=name, step=step, ema=ema, settings=settings, scores={}, notes=notes)
        results.append(of_task)
    return results
