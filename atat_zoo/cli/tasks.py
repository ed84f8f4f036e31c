"""`--task` of `atat eval` and `atat compare`: held-out problems with scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import named
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.errors import UserError
from atat_zoo.evaluation.results.format import NONE
from atat_zoo.evaluation.results.tasks import Score, TaskResult, difference, notes_of
from atat_zoo.experiment import from_table
from atat_zoo.experiment.runs import RunFolder

if TYPE_CHECKING:
    from atat_zoo.evaluation.tasks import Task

_FLAGS = {"text": "--corpus", "sequences_at_once": "--batch-size", "metrics": "--metric"}


def evaluate_tasks(
    run: Path,
    wanted: Sequence[str],
    *,
    step: int | str | None,
    seed: int | None,
    device: str,
    as_json: bool,
    **other: Any,
) -> None:
    """Measure a run by tasks, and print the scores; `other` are options of the bound, which are refused."""
    results = _measured([run], wanted, step=step, seed=seed, device=device, silent=as_json, **other)[run]
    if as_json:
        print_json({"run": str(run), "tasks": [each.to_table() for each in results]})
    else:
        show(results)


def compare_tasks(
    runs: Sequence[Path],
    wanted: Sequence[str],
    *,
    baseline: int,
    step: int | str | None,
    seed: int | None,
    device: str,
    as_markdown: bool,
    as_json: bool,
    **other: Any,
) -> None:
    """Measure runs by tasks, and print their scores with the differences to those of the baseline, item by item."""
    silent = as_json or as_markdown
    results = _measured(runs, wanted, step=step, seed=seed, device=device, silent=silent, base=baseline, **other)
    show_side_by_side(results, runs[baseline], as_markdown=as_markdown, as_json=as_json)


def show_side_by_side(
    results: dict[Path, list[TaskResult]], baseline: Path, *, as_markdown: bool, as_json: bool
) -> None:
    """Print the scores of runs by the same tasks, and how far each is from the baseline's."""
    if as_json:
        tables = [_as_table(run, of_run, results[baseline]) for run, of_run in results.items()]
        print_json({"baseline": str(baseline), "runs": tables})
        return
    table(*_side_by_side(results, baseline), as_markdown)
    click.echo("")
    lines = notes_of({str(run): of_run for run, of_run in results.items()})
    if len(results) > 1:
        lines.append(f"Differences are to {baseline}, of the same items; 95 % intervals over items.")
    for line in lines:
        click.echo(line + ("  " if as_markdown else ""))


def _measured(
    runs: Sequence[Path],
    wanted: Sequence[str],
    *,
    step: int | str | None,
    seed: int | None,
    device: str,
    silent: bool,
    base: int = 0,
    **other: Any,
) -> dict[Path, list[TaskResult]]:
    """Return the results of each run; the seed is that of the run with the index `base` unless one is named."""
    for key, value in other.items():
        if value not in (None, (), ""):
            flag = _FLAGS.get(key, f"--{key}") if key != "overrides" else value[0]
            remedy = "leave it out, or name what the task has in its table"
            raise UserError(f"{flag}: is of the bound, and --task measures a task; {remedy}")
    from atat_zoo.evaluation.tasks import require

    tasks: list[Task] = [named("task", text) for text in dict.fromkeys(wanted)]
    folders = [RunFolder(run) for run in runs]
    experiments = [from_table(folder.table(), where=str(folder.resolved)) for folder in folders]
    for experiment in experiments:
        require(tasks, experiment)
    from atat_zoo.evaluation.tasks import measure_tasks
    from atat_zoo.generation.model import Model

    seed = experiments[base].seed if seed is None else seed
    results = {}
    with Bars(silent=silent) as bars:
        for run in runs:  # one model in memory at a time
            results[run] = measure_tasks(
                tasks, Model.from_run(run, device, step), run, seed=seed, progress=bars.working
            )
    return results


def show(results: Sequence[TaskResult]) -> None:
    """Print the scores of a model, a table for each task."""
    for result in results:
        click.echo(
            f"task {result.task}, seed {result.seed}; step {result.step}, {'EMA' if result.ema else 'final'} weights"
        )
        published = _published(result.scores.values())
        rows = [
            [name, score.quantity, score.said, f"{score.items:,}", *_beside(score, published)]
            for name, score in result.scores.items()
        ]
        table(["", "quantity", "score", "items", *(f"{name}, published" for name in published)], rows)
        for note in result.notes:
            click.echo(note)


def _side_by_side(results: dict[Path, list[TaskResult]], baseline: Path) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows with a column for each run."""
    published = _published(score for of_run in results.values() for each in of_run for score in each.scores.values())
    rows, at = [], list(results).index(baseline)
    for of_task in zip(*results.values(), strict=True):
        by_name = {name: score for each in reversed(of_task) for name, score in each.scores.items()}
        for name in dict.fromkeys(name for each in of_task for name in each.scores):
            cells, theirs = [], of_task[at].scores.get(name)
            for run, result in zip(results, of_task, strict=True):
                score = result.scores.get(name)
                beside = f", {difference(score, theirs)}" if score and theirs and run != baseline else ""
                cells.append(score.said + beside if score else NONE)
            rows.append([of_task[0].task, name, by_name[name].quantity, *cells, *_beside(by_name[name], published)])
    columns = ["task", "", "quantity", *map(str, results), *(f"{name}, published" for name in published)]
    return columns, rows


def _as_table(run: Path, results: list[TaskResult], base: list[TaskResult]) -> dict[str, Any]:
    tables = []
    for result, other in zip(results, base, strict=True):
        found = result.to_table()
        for name, score in result.scores.items():
            interval = score.minus(other.scores[name]) if name in other.scores and result is not other else None
            ends = interval and {"value": interval.value, "low": interval.low, "high": interval.high}
            found["scores"][name]["difference"] = ends
        tables.append(found)
    return {"run": str(run), "tasks": tables}


def _published(scores: Any) -> list[str]:
    return list(dict.fromkeys(name for score in scores for name in score.published))


def _beside(score: Score, published: Sequence[str]) -> list[str]:
    return [f"{score.published[name]:.2f}" if name in score.published else NONE for name in published]
