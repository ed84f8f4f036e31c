"""Tasks of runs as tables of a page: a column for each run. Imports no torch."""

from collections.abc import Iterable, Mapping
from typing import Any

from atat_zoo.evaluation.results.format import NONE, joined, uncertain
from atat_zoo.evaluation.results.tasks import TaskResult, notes_of, task_results

Table = dict[str, Any]
Results = dict[tuple[str, int], TaskResult]  # by the title of the task and the seed


def last(evaluations: Iterable[Mapping[str, Any]]) -> Results:
    """Return the results of a run's latest weights, among those of its evaluations/."""
    found: Results = {}
    for result in sorted(task_results(evaluations), key=lambda result: result.step):
        found[result.task, result.seed] = result
    return found


def tables(by_run: Mapping[str, Results]) -> list[Table]:
    """Return a table for each task and seed that a run was measured by: scores with their errors, and notes."""
    both = sorted(dict.fromkeys(each for results in by_run.values() for each in results))
    return [
        _table(task, seed, {run: of[task, seed] for run, of in by_run.items() if (task, seed) in of}, by_run)
        for task, seed in both
    ]


def _table(task: str, seed: int, results: Mapping[str, TaskResult], runs: Iterable[str]) -> Table:
    every = [score for result in results.values() for score in result.scores.values()]
    published = list(dict.fromkeys(name for score in every for name in score.published))
    rows = []
    for name in dict.fromkeys(name for result in results.values() for name in result.scores):
        of = {run: result.scores[name] for run, result in results.items() if name in result.scores}
        one = next(iter(of.values()))
        items = ", ".join(dict.fromkeys(f"{score.items:,}" for score in of.values()))
        theirs = [f"{one.published[each]:.2f}" if each in one.published else NONE for each in published]
        ours = [uncertain(of[run].value, of[run].stderr) if run in of else NONE for run in runs]
        rows.append([name, one.quantity, items, *ours, *theirs])
    steps = dict.fromkeys(result.step for result in results.values())
    at = [f"step {step:,} of {joined([run for run, each in results.items() if each.step == step])}" for step in steps]
    said = [
        f"Seed {seed}, {joined(at)}; ± one standard error over items.",
        *notes_of({run: [each] for run, each in results.items()}),
    ]
    if len(results) > 1:
        said.append("Differences item by item, with their intervals: `atat compare RUN RUN --task`.")
    columns = ["score", "quantity", "items", *runs, *(f"{name}, published" for name in published)]
    return {"title": task, "said": said, "columns": columns, "rows": rows}
