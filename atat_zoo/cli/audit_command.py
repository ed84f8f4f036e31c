"""`atat audit`, and the `--task` option of `atat eval` and `atat compare`: evaluate runs on tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import count, even, named, options, other_text
from atat_zoo.cli.console import Bars, paragraphs, print_json, table
from atat_zoo.cli.judge_command import judge_of
from atat_zoo.evaluation.results.format import NONE
from atat_zoo.evaluation.results.task_results import Score, TaskResult, difference, notes_of
from atat_zoo.evaluation.tasks import Task, measure_tasks, require
from atat_zoo.evaluation.tasks.protocol import PROTOCOLS
from atat_zoo.experiment import from_run
from atat_zoo.registry import Zoo, problems_of
from atat_zoo.system.errors import UserError

_PROTOCOL = "Also evaluate with the protocol of this published code. Repeatable."
_FLAGS = {"text": "--corpus", "sequences_at_once": "--batch-size", "metrics": "--metric"}


def evaluate_tasks(
    runs: Sequence[Path],
    wanted: Sequence[str],
    *,
    step: int | str | None,
    seed: int | None,
    device: str,
    as_json: bool,
    as_markdown: bool = False,
    baseline: int | None = None,
    **of_bound: Any,
) -> None:
    """Evaluate runs on tasks and print the scores; given the index of a `baseline` run, also print the differences.

    The seed defaults to that of the baseline's experiment. A given option for bounds (`of_bound`) raises a `UserError`.
    """
    for key, value in of_bound.items():
        if value not in (None, (), ""):
            flag = _FLAGS.get(key, f"--{key.replace('_', '-')}") if key != "overrides" else value[0]
            remedy = "leave it out, or set the parameter in the task's table"
            raise UserError(f"{flag} does not apply to --task; {remedy}")
    tasks: list[Task] = [named("task", text) for text in dict.fromkeys(wanted)]
    experiments = list(map(from_run, runs))
    for experiment in experiments:
        require(tasks, experiment)
    seed = experiments[baseline or 0].seed if seed is None else seed
    results = _measured(tasks, runs, seed, device, silent=as_json or as_markdown, step=step)
    if baseline is not None:
        show_side_by_side(results, runs[baseline], as_markdown=as_markdown, as_json=as_json)
    elif as_json:
        print_json({"run": str(runs[0]), "tasks": [each.to_table() for each in results[runs[0]]]})
    else:
        show(results[runs[0]])


def _measured(
    tasks: Sequence[Task],
    runs: Sequence[Path],
    seed: int,
    device: str,
    *,
    silent: bool,
    step: int | str | None = None,
    leave_out: bool = False,
) -> dict[Path, list[TaskResult]]:
    from atat_zoo.generation.model import Model

    results = {}
    with Bars(silent=silent) as bars:
        for run in runs:  # one model in memory at a time
            model = Model.from_run(run, device, step)
            results[run] = measure_tasks(tasks, model, run, seed=seed, leave_out=leave_out, progress=bars.working)
            del model  # before the next is loaded
    return results


def show_side_by_side(
    results: dict[Path, list[TaskResult]], baseline: Path, *, as_markdown: bool, as_json: bool
) -> None:
    """Print the scores of runs on the same tasks, and their differences from `baseline`, one of the runs."""
    if as_json:
        tables = [_as_table(run, of_run, results[baseline]) for run, of_run in results.items()]
        print_json({"baseline": str(baseline), "runs": tables})
        return
    table(*_side_by_side(results, baseline), as_markdown)
    click.echo("")
    lines = notes_of({str(run): of_run for run, of_run in results.items()})
    if len(results) > 1:
        lines.append(f"Differences are from {baseline}, on the same items; 95 % CI over items.")
    paragraphs(lines, as_markdown)


def show(results: Sequence[TaskResult]) -> None:
    """Print a table of scores for each task on which a model was evaluated, followed by the task's notes."""
    for result in results:
        weights = "EMA" if result.ema else "final"
        click.echo(f"task {result.task}, seed {result.seed}; step {result.step}, {weights} weights")
        published = _published(result.scores.values())
        rows = [
            [name, score.quantity, score.said, f"{score.items:,}", *_beside(score, published)]
            for name, score in result.scores.items()
        ]
        table(["", "quantity", "score", "items", *(f"{name}, published" for name in published)], rows)
        paragraphs(result.notes)


def _side_by_side(results: dict[Path, list[TaskResult]], baseline: Path) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table that has a column for each run."""
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


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@options("text", "split")
@click.option("--protocol", "protocols", multiple=True, type=click.Choice(list(PROTOCOLS)), help=_PROTOCOL)
@click.option(
    "--sampler",
    "samplers",
    multiple=True,
    help="Sampler whose policy bound is computed (default: ancestral). Repeatable.",
)
@click.option("--judge", "by", help="Judge model for generated text: a run, hf:NAME, or a table {use = …}.")
@count("--sequences", 0, "Maximum number of sequences for the bounds; 0 means all.", 1024)
@count("--mask-samples", 1, "Number of masks sampled per sequence.", 4)
@count("--orders", 2, "Number of decoding orders for the likelihood bracket; must be even.", 16)
@count(
    "--bracket-sequences",
    0,
    "Sequences for the likelihood bracket, which takes one forward pass per token and order; 0 skips the bracket.",
    16,
)
@count("--sampler-sequences", 0, "Sequences for the policy bounds of the samplers; 0 skips these bounds.", 64)
@count("-n --num-samples number", 0, "Number of texts generated by each sampler.", 16)
@options("mask_seed", "device", "markdown", "json")
def audit(
    runs: tuple[Path, ...],
    text: str | None,
    split: str | None,
    by: str | None,
    seed: int | None,
    device: str,
    as_markdown: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Evaluate one or more models on the same text with several estimators.

    The table has the bound from two estimators, per token and per byte; the calibration; a likelihood bracket (an upper
    and a lower limit of the NLL); the policy bound, NFE and text scores of each sampler; and, with --protocol, the
    number that the published code would print. Use `atat import` to evaluate published models. Finished evaluations are
    reused, so an interrupted audit can be resumed.
    """
    judge = judge_of(by, runs[0]) if by else None
    tasks = list(_tasks(other_text(text).get("corpus"), split, judge, **given))
    experiment = from_run(runs[0])
    for problem in problems_of(judge, experiment) if judge else ():
        raise UserError(str(problem))
    if missing := next((why for task in tasks for why in task.absent()), None):
        raise UserError(missing)
    seed, silent = experiment.seed if seed is None else seed, as_json or as_markdown
    results = _measured(tasks, runs, seed, device, silent=silent, leave_out=True)
    show_side_by_side(results, runs[0], as_markdown=as_markdown, as_json=as_json)


def _tasks(
    corpus: Any,
    split: str | None,
    judge: Any,
    *,
    protocols: tuple[str, ...],
    samplers: tuple[str, ...],
    sequences: int,
    mask_samples: int,
    orders: int,
    bracket_sequences: int,
    sampler_sequences: int,
    number: int,
) -> Iterator[Task]:
    """Yield the tasks on which each model is evaluated."""
    zoo, of_text = Zoo.load(), {"corpus": corpus, "split": split or "validation"}

    def task(name: str, **settings: Any) -> Task:
        return zoo.spec("task", {"use": name, **of_text, **settings})

    yield task("held_out", sequences=sequences, mask_samples=mask_samples)
    for protocol in dict.fromkeys(protocols):
        yield task("protocol", protocol=protocol, sequences=sequences, mask_samples=mask_samples)
    if bracket_sequences:
        yield task("bracket", sequences=bracket_sequences, orders=even(orders))
    if sampler_sequences:
        each = [named("sampler", sampler) for sampler in samplers or ("ancestral",)]
        yield task("prices", samplers=each, sequences=sampler_sequences, texts=number, judge=judge)
