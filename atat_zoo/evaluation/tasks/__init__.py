"""Tasks: held-out problems with scores, on a finished model; each is measured once for the same weights and seed."""

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
from atat_zoo.registry.spec import Field, fields_of, unstructure
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress, StageProgress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model


class Task(Protocol):
    """A component of the kind task, which inherits from this class; `measure` alone has no default."""

    name: str
    reads_dialogues: ClassVar[bool] = False  # whether it is of runs that have learned answers, data.format = "chat"

    def absent(self) -> Iterable[str]:
        """Yield a sentence for each file or package that is not there: which one, and where it is had.

        It is asked before a training and before a model is loaded, and imports no torch.
        """
        return ()

    def inputs(self, experiment: Experiment) -> Any:
        """Return what the scores depend on besides the parameters, the weights and the seed, as a JSON value.

        Such as the SHA-256 of a file, or the experiment's own sampler. What was measured with the same is not measured
        again.
        """
        return None

    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> Mapping[str, Score | str]:
        """Return the scores by name; what is drawn is a function of the seed and of the number of the item.

        A sentence in the place of a score is a note, such as how long it took: no two are compared. `Score.over` makes
        one of the numbers of each item. `run` is the folder of the model's run. `progress` is called with the completed
        and the total number of items.

        Raises:
            UserError: when the model cannot be measured; `check` says what the experiment tells beforehand.
        """
        ...

    def notes(self, model: Model) -> Iterable[str]:
        """Yield what is to be said beside the scores of a model, a line each."""
        return ()


def title(task: Task) -> str:
    """Return `infilling (gap = 3)`: the name, and the parameters that differ from their defaults."""
    table = unstructure(task)
    fields = {field.name: field for field in fields_of(type(task))}
    chosen = settings({key: value for key, value in table.items() if key in fields and value != _default(fields[key])})
    return task.name + (f" ({chosen})" if chosen else "")


def _default(field: Field) -> Any:
    """Return the default as `unstructure` writes it; a required parameter's equals nothing."""
    if field.kind and not field.many and isinstance(field.default, str | dict):
        return unstructure(Zoo.load().spec(field.kind, field.default))
    return list(field.default) if isinstance(field.default, tuple) else field.default


def conflicts_of(experiment: Experiment, **parts: Any) -> Iterable[Problem]:
    """Yield what keeps the models of an experiment from using other parts, by kind, such as a sampler of the task's."""
    # Without its tasks, whose checks are what asks.
    evaluation: Any = experiment.evaluation
    yield from conflicts_with(attrs.evolve(experiment, evaluation=attrs.evolve(evaluation, tasks=())), parts)


def require(tasks: Iterable[Task], experiment: Experiment) -> None:
    """Raise `UserError` for what tasks lack, and for an experiment whose models they cannot measure."""
    sentences = [
        f"task {title(task)}: {problem}"
        for task in tasks
        for problem in (*(each.text for each in problems_of(task, experiment)), *task.absent())
    ]
    if sentences:
        raise UserError("\n".join(sentences))


def sampling_inputs(sampler: Any, experiment: Experiment) -> list[Any]:
    """Return what the scores of sampled texts depend on: the sampler, or the run's own if None, guidance and text."""
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
    """Measure `Model.from_run(run)` by tasks, and keep the results in the run folder; what is there is read.

    `progress` is called with the title of a task, and the completed and the total number of its items.

    Raises:
        UserError: when a task cannot measure the model; with `leave_out` that is a note in the place of its scores, as
            is what the task finds in the experiment.
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
