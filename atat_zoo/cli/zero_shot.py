"""`--corpus zero-shot` of `atat eval` and `atat compare`: the field's table, for one run or for several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import ZERO_SHOT, with_options
from atat_zoo.cli.compare import Shown, as_table, conditions, difference_of, differing
from atat_zoo.cli.console import Bars, print_json
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atat_zoo.evaluation.zero_shot import OnCorpus
    from atat_zoo.experiment import EvaluationSpec


def check(given: dict[str, Any]) -> None:
    """Raise `UserError` for an option that `--corpus zero-shot` decides itself."""
    if given.get("split"):
        raise UserError(f"--split: --corpus {ZERO_SHOT} takes the splits of the published figures; leave it out")


def of_run(
    run: Path, given: dict[str, Any], *, step: int | None, seed: int | None, policy: bool, device: str, as_json: bool
) -> None:
    """Print the table of the seven corpora, and what differs from the published one."""
    if policy:
        raise UserError(f"--bound policy: --corpus {ZERO_SHOT} compares another; name one corpus, or leave it out")
    check(given)
    from atat_zoo.evaluation.zero_shot import differences, evaluate_all, table
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    spec = with_options(model.experiment.evaluation, given)
    with Bars(silent=as_json) as bars:
        seed = model.experiment.seed if seed is None else seed
        rows = list(evaluate_all(model, run, spec, seed=seed, progress=bars.evaluating))
    others = differences(model, spec)
    if as_json:
        found = {row.of.recipe: row.found.to_table() if row.found else None for row in rows}
        print_json({"run": str(run), "corpora": found, "differences": others, **_beside(rows)})
        return
    for line in table(rows):
        click.echo(line)
    click.echo("what differs from the published figures (arXiv:2406.07524):")
    for text in others:
        click.echo(f"  {text}")
    for row in rows:
        if row.problem:
            click.echo(f"{row.of.title}: {row.problem}")


def of_runs(runs: Sequence[Path], spec: EvaluationSpec, *, step: int | None, **options: Any) -> Shown:
    """Return the table of several runs, compared on each corpus; see `compare_all`."""
    from atat_zoo.evaluation.zero_shot import compare_all, differences
    from atat_zoo.model import Model

    rows = list(compare_all(runs, spec, step=step, **options))
    from_published = {str(run): differences(Model.from_run(run, step=step), spec) for run in runs}
    found = {row.of.recipe: as_table(row.found) if row.found else None for row in rows}
    return Shown(
        {"corpora": found, "differences": from_published, **_beside(rows)},
        [side_by_side(rows, [str(run) for run in runs])],
        _notes(rows, from_published),
    )


def _beside(rows: list[OnCorpus]) -> dict[str, Any]:
    from atat_zoo.evaluation.zero_shot import PUBLISHED

    return {
        "published": {row.of.recipe: dict(zip(PUBLISHED, row.of.published, strict=True)) for row in rows},
        "not_evaluated": {row.of.recipe: row.problem for row in rows if row.problem},
    }


def side_by_side(rows: list[OnCorpus], runs: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the field's table, with a column for each run."""
    from atat_zoo.evaluation.zero_shot import PUBLISHED

    cells = []
    for row in rows:
        found = ["not evaluated"] * len(runs)
        for number, run in enumerate(row.found.rows if row.found else ()):
            value, difference = run.bounds[row.found.quantity], run.differences[row.found.quantity]
            found[number] = f"{value.value:.2f} ± {value.stderr:.2f}"
            found[number] += f", {difference_of(difference)[1]}" if difference else ""
        cells.append([row.of.title, row.of.split, *found, *(f"{value:.2f}" for value in row.of.published)])
    return ["corpus", "split", *runs, *(f"{name}, published" for name in PUBLISHED)], cells


def _notes(rows: list[OnCorpus], from_published: dict[str, list[str]]) -> list[str]:
    """Return what was compared, what differs from the published figures, and why a corpus is not there."""
    first = next((row.found for row in rows if row.found), None)
    lines = [*conditions(first, "each corpus"), *differing(first)] if first else []
    lines.append("what differs from the published figures (arXiv:2406.07524):")
    for text in dict.fromkeys(text for texts in from_published.values() for text in texts):
        runs = [run for run, texts in from_published.items() if text in texts]
        lines.append(f"  {text}" if len(runs) == len(from_published) else f"  {', '.join(runs)}: {text}")
    return lines + [f"{row.of.title}: {row.problem}" for row in rows if row.problem]
