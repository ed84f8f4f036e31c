"""Tables filled from run folders: evaluations, tasks and hyperparameters, with missing cells for missing values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from atat_zoo import experiment as experiments
from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.format import leaves
from atat_zoo.evaluation.results.history import History, history
from atat_zoo.evaluation.results.intervals import LEVEL
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY, title
from atat_zoo.evaluation.results.quantity_names import words as metric_words
from atat_zoo.evaluation.results.table import LOWER, Cell, Column, Table
from atat_zoo.evaluation.results.task_results import Score, TaskResult, task_results
from atat_zoo.experiment import Experiment
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.changes import changes
from atat_zoo.experiment.runs.model_files import DESCRIPTION
from atat_zoo.registry.spec import unstructure
from atat_zoo.reports.run_records import figure
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo_paper.cells import count, directed, filled, missing, normal, nothing, require, trained_alike, words
from atat_zoo_paper.paper_file import EvaluationsTable, ParametersTable, RunRow, TasksTable, WantedTable
from atat_zoo_paper.paper_studies import CannotShow

Report = dict[str, Any]


@attrs.frozen(kw_only=True)
class KnownRun:
    """Run folder for a row, which may not exist yet."""

    row: RunRow
    folder: RunFolder

    @classmethod
    def of(cls, row: RunRow) -> KnownRun:
        """Return the run for a row; raise `CannotShow` if its folder contains a run of a different experiment."""
        known = cls(row=row, folder=RunFolder(Path(row.run)))
        try:
            wanted = known.experiment()
            there = known.folder.table() if known.folder.exists else {}
            for change in changes(wanted.to_table(), there) if wanted and there else ():
                key, was, now, free = change
                if key != "seed" and (not free or change.of_text or f"{key}.".startswith("init_from.")):
                    values = f"{key} is {clip(repr(now), 60)} in the run and {clip(repr(was), 60)} in {row.experiment}"
                    raise CannotShow(
                        "rows",
                        f"{row.run} is a run of a different experiment: {values}; "
                        "correct the row's experiment or overrides",
                    )
        except UserError as error:
            raise CannotShow("rows", f"{str(error).splitlines()[0]}") from None
        return known

    def experiment(self) -> Experiment | None:
        """Return the experiment from which the run is trained, or None if the row has a training command."""
        row = self.row
        return (
            experiments.load(row.experiment, row.overrides, overrides_from="in its overrides")
            if row.experiment
            else None
        )

    @property
    def name(self) -> str:
        """Label of the row in the table."""
        return self.row.name or Path(self.row.run).name

    def command(self, measured: str) -> str:
        """Return the command for a missing cell: training, if unfinished, and `atat eval` with options `measured`."""
        run = shlex.quote(self.row.run)
        words = " ".join(map(shlex.quote, [self.row.experiment or "", *self.row.overrides]))
        evaluate = f"atat eval {run} {measured}"
        if not self.folder.exists:
            return f"{self.row.train or f'atat train {words} --out {run}'} && {evaluate}"
        if not (self.folder.model / DESCRIPTION).is_file():
            return f"atat train --resume {run} && {evaluate}"
        return evaluate

    def tables(self) -> list[Report]:
        """Return the run's saved evaluations as JSON objects; the list is empty if the run does not exist."""
        return list(store.tables(self.folder)) if self.folder.exists else []


def _title(table: Report) -> str:
    name, bound = next(iter(table["bounds"].items()))
    return title(name, bound.get("factorisation", ""))


def _bound(key: str, error: str, better: int = LOWER) -> tuple[str, int, Callable[[Report], Cell]]:
    def of(table: Report) -> Cell:
        bound = next(iter(table["bounds"].values()))
        return normal(figure(bound[key]), figure(bound.get(error)))

    return key.replace("_", " "), better, of


def _plain(key: str) -> tuple[str, int, Callable[[Report], Cell]]:
    return key, 0, lambda table: count(figure(table[key]), ",.0f")


# key -> heading, direction, and the cell of an evaluation
_OF_EVALUATION = {
    "value": _bound("value", "stderr"),
    "bits_per_byte": _bound("bits_per_byte", "bits_per_byte_stderr"),
    "bound": ("bound", 0, lambda table: words(_title(table))),
    **{key: _plain(key) for key in ("step", "sequences", "tokens", "draws")},
}
# of the training
_OF_HISTORY: dict[str, tuple[str, Callable[[History], Cell]]] = {
    "seconds": ("seconds", lambda past: count(past.seconds, ",.0f")),
    "tokens_per_second": ("tokens per second", lambda past: count(past.tokens_per_second, ",.0f")),
    "peak_memory": ("peak memory, MiB", lambda past: count(past.peak_memory and past.peak_memory / 2**20, ",.0f")),
}


def evaluations_table(wanted: WantedTable) -> Table:
    """Return a table of evaluations; raise `CannotShow` for an unknown column or runs evaluated differently."""
    spec: EvaluationsTable = wanted.spec
    runs = [KnownRun.of(row) for row in wanted.rows]
    found = [_evaluation(run, spec.split) for run in runs]
    measured = [(run, table) for run, table in zip(runs, found, strict=True) if table]
    _same_text(measured, spec.split)
    keys = [*_OF_EVALUATION, *_OF_HISTORY, *(metric.title for metric in spec.metrics)]
    if wrong := [key for key in spec.columns if key not in keys]:
        hint, there = nearest(wrong[0], keys), ", ".join(keys)
        raise CannotShow("columns", f"runs have no column {wrong[0]!r}{hint} (columns: {there}; `metrics` adds others)")
    how = [f"--split {spec.split}", *(f"--metric {shlex.quote(_inline(m))}" for m in wanted.given.get("metrics", ()))]
    rows, trained = [], []
    for run, table in zip(runs, found, strict=True):
        past = history(run.folder, experiments.from_table(run.folder.table())) if table else None
        if past:
            machine = run.folder.machine()
            trained.append(([machine.get(key) for key in ("processor", "cores")], past.computed))
        command = run.command(" ".join(how))
        rows.append((run.name, [_evaluated(key, table, past, command) for key in spec.columns]))
    bounds = {_title(table) for _, table in measured}
    columns = []
    for key in spec.columns:
        heading, better = _OF_EVALUATION[key][:2] if key in _OF_EVALUATION else (metric_words(key), 0)
        heading = _OF_HISTORY[key][0] if key in _OF_HISTORY else heading
        if key == "value":
            heading = bounds.pop() if len(bounds) == 1 else PERPLEXITY
        columns.append(Column(key=key, heading=heading, better=better))
    notes = [_LEGEND, *trained_alike(spec.columns, trained)]
    return filled(spec, "run", columns, rows, notes)


def _evaluation(run: KnownRun, split: str) -> Report | None:
    """Return the evaluation of the latest step, with the most sequences, on a run's own text, or None."""
    tables = [
        table
        for table in run.tables()
        if isinstance(table.get("bounds"), dict) and table["bounds"] and not table.get("corpus")
        if table.get("split") == split
    ]
    return max(tables, key=lambda table: (table["step"], table["sequences"]), default=None)


# A different text may have as many tokens, but hardly as many bytes and words, too.
_TEXT = ("sequences", "tokens", "bytes", "words")


def _same_text(measured: list[tuple[KnownRun, Report]], split: str) -> None:
    for run, table in measured[1:]:
        first, own = measured[0]
        other = next((key for key in _TEXT if own.get(key) != table.get(key)), None)
        if other is None and own["draws"] and table["draws"]:  # nothing is drawn for a likelihood
            other = next((key for key in ("draws", "seed", "method") if own.get(key) != table.get(key)), None)
        if other is not None:
            texts = f"{run.row.run} was evaluated on different text or masks from {first.row.run}"
            values = f"{other} is {table.get(other)} instead of {own.get(other)}"
            remedy = f"pass the same options to `atat eval RUN --split {split}` for both, or split the table"
            raise CannotShow("rows", f"{texts}: {values}; {remedy}")


def _evaluated(key: str, table: Report | None, past: History | None, command: str) -> Cell:
    if table is None or past is None:
        return missing(command)
    if key in _OF_EVALUATION:
        return _OF_EVALUATION[key][2](table)
    if key in _OF_HISTORY:
        return _OF_HISTORY[key][1](past)
    metric = (table.get("metrics") or {}).get(key)
    if metric is None:
        return missing(command)
    return normal(figure(metric["value"]), figure(metric.get("stderr")))


_LEGEND = (
    f"Brackets are {100 * LEVEL:g} % CIs from standard errors over held-out items, without the variation between "
    "training runs; bold: the best value, if its interval overlaps no other in its column."
)


def tasks_table(wanted: WantedTable) -> Table:
    """Return a table of scores and published scores; raise `CannotShow` for scores that are not comparable."""
    spec: TasksTable = wanted.spec
    runs = [KnownRun.of(row) for row in wanted.rows]
    columns = list(directed(spec))
    found = [_result(run, spec.task) for run in runs]
    for each in found:
        require(spec.columns, spec.task.name, list(each.scores) if each else None)
    for column in spec.columns:
        _same_items(column, [(run, result.scores[column]) for run, result in zip(runs, found, strict=True) if result])
    rows = []
    for run, result in zip(runs, found, strict=True):
        command = run.command(f"--task {shlex.quote(_inline(wanted.given['task']))}")
        cells = [missing(command)] * len(spec.columns)
        if result:
            of_run = [result.scores[column] for column in spec.columns]
            cells = [normal(figure(score.value), figure(score.stderr)) for score in of_run]
        rows.append((run.name, cells))
    notes = [_LEGEND, *dict.fromkeys(note for result in found if result for note in result.notes)]
    return filled(spec, "run", columns, rows, notes, _published(spec, [result for result in found if result]))


def _inline(value: Any, nested: bool = False) -> str:
    """Return a component as the value of a command-line option: a name, or a TOML table on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_inline(inner, True)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False) if nested else str(value)


def _result(run: KnownRun, task: Any) -> TaskResult | None:
    """Return a run's last result for the task with the same parameters."""
    wanted = store.finite(unstructure(task))
    results = [result for result in task_results(run.tables()) if result.settings.get("task") == wanted]
    return max(results, key=lambda result: result.step, default=None)


def _same_items(column: str, scores: list[tuple[KnownRun, Score]]) -> None:
    for run, score in scores[1:]:
        first, own = scores[0]
        if (score.quantity, score.of) != (own.quantity, own.of):
            problem = f"{column!r} of {run.row.run} is not comparable with that of {first.row.run}"
            raise CannotShow("columns", f"{problem}: the quantities or items (such as tokens) differ; split the table")


def _published(spec: TasksTable, found: list[TaskResult]) -> Iterable[tuple[str, str, list[Cell]]]:
    """Yield a row for each model with published values for the same quantities."""
    every = [result.scores[column] for result in found[:1] for column in spec.columns]
    for name in dict.fromkeys(name for score in every for name in score.published):
        values = [score.published.get(name) for score in every]
        yield f"{name}, published", next(iter(spec.task.refs), ""), [count(value, ".2f") for value in values]


def parameters_table(wanted: WantedTable) -> Table:
    """Return a table of hyperparameters, a row per key and a column per run; raise `CannotShow` for an unknown key."""
    spec: ParametersTable = wanted.spec
    runs = [KnownRun.of(row) for row in wanted.rows]
    tables = [dict(leaves(run.folder.table() if run.folder.exists else _table_of(run))) for run in runs]
    for key in spec.columns:
        if not any(key in table for table in tables):
            known = sorted({name for table in tables for name in table})
            raise CannotShow(
                "columns",
                f"the experiments of the rows have no {key!r}{nearest(key, known)}; `atat resolve` lists the keys",
            )
    columns = [Column(key=run.name, heading=run.name) for run in runs]
    rows = [(key, [_parameter(table.get(key)) for table in tables]) for key in spec.columns]
    return filled(spec, "parameter", columns, rows)


def _table_of(run: KnownRun) -> Report:
    made = run.experiment()
    if made is None:
        raise CannotShow(
            "rows", f"{run.row.run} does not exist and its row has no experiment; add an experiment, or train the run"
        )
    return made.to_table()


def _parameter(value: Any) -> Cell:
    if value is None:
        return nothing()
    if isinstance(value, bool | list):
        return words(", ".join(map(str, value)) if isinstance(value, list) else "yes" if value else "no")
    return attrs.evolve(words(f"{value:,}" if isinstance(value, int) else f"{value}"), value=value)
