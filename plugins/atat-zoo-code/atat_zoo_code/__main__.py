"""The command `python -m atat_zoo_code`, which prints tables of line infilling and of token classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from atat_zoo.cli import run as run_command

if TYPE_CHECKING:
    from atat_zoo.evaluation.results.task_results import Score, TaskResult

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
_runs: Decorator = click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
_seed: Decorator = click.option("--seed", default=17, show_default=True, type=click.IntRange(0), help="Random seed.")
_step: Decorator = click.option(
    "--step", help="Training step of the models: a number, newest or best (default: the final models)."
)


def _number(what: str) -> Decorator:
    text = f"Maximum number of {what}, evenly spaced; 0 means all."
    return click.option(f"--{what}", default=512, show_default=True, type=click.IntRange(0), help=text)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Evaluate runs on Python code; the results are saved in the runs, as those of `atat eval --task`."""


@main.command()
@_runs
@_number("lines")
@_seed
@_step
def infill(runs: tuple[Path, ...], lines: int, seed: int, step: str | None) -> None:
    """Print how often RUNS fill a line of the test files with the true one, and with one that parses."""
    from atat_zoo_code.code_tasks import LineInfillingTask

    results = {str(run): _result(LineInfillingTask(lines=lines), run, seed, step) for run in runs}
    click.echo(infilling_tables({run: result.scores for run, result in results.items()}))


@main.command()
@_runs
@_number("sequences")
@_seed
@_step
def classes(runs: tuple[Path, ...], sequences: int, seed: int, step: str | None) -> None:
    """Print the mean loss and importance of each class of tokens in the test files."""
    from atat_zoo_code.code_tasks import TokenClassesTask

    results = {str(run): _result(TokenClassesTask(sequences=sequences), run, seed, step) for run in runs}
    click.echo(class_table({run: result.scores for run, result in results.items()}))


def _result(task: Any, run: Path, seed: int, step: str | None) -> TaskResult:
    from atat_zoo.evaluation.tasks import measure_tasks, require
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, step=step)
    require([task], model.experiment)
    return measure_tasks([task], model, run, seed=seed)[0]


def infilling_tables(found: Mapping[str, Mapping[str, Score]]) -> str:
    """Return Markdown: a table of runs and sides with 95 % CIs, and one by the number of tokens of the line."""
    rows = [(run, side) for run, scores in found.items() for side in ("both sides", "left side") if _of(side) in scores]
    first, side = rows[0]
    base = found[first][_of(side)]
    lines = [f"| run | given | lines | exact match | parses | exact match against {first}, {side} |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for run, side in rows:
        exact, parsed = (found[run][f"{what}, {side}"] for what in ("exact match", "parses"))
        difference = "" if exact is base else _difference(exact, base)
        lines.append(f"| {run} | {side} | {exact.items} | {_rate(exact)} | {_rate(parsed)} | {difference} |")
    begin = _of(rows[0][1]) + ", "
    bands = [key.removeprefix(begin) for key in found[first] if key.startswith(begin)]
    counts = [f"{each} ({found[first][begin + each].items} lines)" for each in bands]
    lines += ["", "| run | given | " + " | ".join(counts) + " |", "| --- " * (2 + len(bands)) + "|"]
    for run, side in rows:
        cells = []
        for each in bands:
            exact, parsed = (found[run][f"{what}, {side}, {each}"] for what in ("exact match", "parses"))
            cells.append(f"{100 * exact.value:.1f} %, {100 * parsed.value:.1f} %")
        lines.append(f"| {run} | {side} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def class_table(found: Mapping[str, Mapping[str, Score]]) -> str:
    """Return Markdown: the share of each class, and its mean loss and importance in each run, with standard errors."""
    from atat_zoo_code.source_tokens import CLASSES

    one = next(iter(found.values()))
    columns = [(run, what) for run in found for what in ("loss", "importance") if f"{CLASSES[1]}, {what}" in found[run]]
    lines = ["| class | share of tokens |" + "".join(f" {run}: {what} |" for run, what in columns)]
    lines += ["| --- " * (2 + len(columns)) + "|"]
    for name in CLASSES:
        if f"{name}, share" in one:
            cells = [found[run][f"{name}, {what}"] for run, what in columns]
            values = "".join(f" {each.value:.3f} ± {each.stderr or 0:.3f} |" for each in cells)
            lines.append(f"| {name} | {100 * one[f'{name}, share'].value:.1f} % |{values}")
    return "\n".join(lines)


def _of(side: str) -> str:
    return f"exact match, {side}"


def _rate(score: Score) -> str:
    """Return a rate and its Wilson interval."""
    from scipy.stats import binomtest

    interval = binomtest(round(sum(score.sums)), score.items).proportion_ci(method="wilson")
    return f"{100 * score.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _difference(score: Score, base: Score) -> str:
    """Return the difference of two rates in percentage points, with a paired bootstrap interval if the lines agree."""
    found = score.minus(base)
    return "—" if found is None else f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_code")
