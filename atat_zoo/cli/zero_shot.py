"""`--corpus zero-shot` of `atat eval` and `atat compare`: the field's table, for one run or for several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import ZERO_SHOT, with_options
from atat_zoo.cli.compare import Cells, Shown, as_table, conditions, difference_of, differing
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.errors import UserError
from atat_zoo.results.format import with_error
from atat_zoo.results.naming import PERPLEXITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from atat_zoo.experiment import EvaluationSpec
    from atat_zoo.measure.zero_shot import OnCorpus


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
    from atat_zoo.measure.zero_shot import differences, evaluate_all
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    spec = with_options(model.experiment.evaluation, given)
    with Bars(silent=as_json) as bars:
        seed = model.experiment.seed if seed is None else seed
        rows = list(evaluate_all(model, run, spec, seed=seed, progress=bars.evaluating))
    others = differences(model, spec)
    if as_json:
        results = {row.of.recipe: row.found.to_table() if row.found else None for row in rows}
        print_json({"run": str(run), "corpora": results, "differences": others, **_beside(rows)})
        return

    def value(evaluation: Any) -> list[str]:
        nelbo = evaluation.nelbo
        return [with_error(nelbo.value, nelbo.stderr, ".2f") if nelbo else "no bound"]

    table(*side_by_side(rows, [PERPLEXITY], value))
    click.echo("\n".join(_notes(rows, {str(run): others})))


def of_runs(runs: Sequence[Path], spec: EvaluationSpec, *, step: int | None, **options: Any) -> Shown:
    """Return the table of several runs, compared on each corpus; see `compare_all`."""
    from atat_zoo.measure.zero_shot import compare_all, differences
    from atat_zoo.model import Model

    rows = list(compare_all(runs, spec, step=step, **options))
    from_published = {str(run): differences(Model.from_run(run, step=step), spec) for run in runs}
    first = next((row.found for row in rows if row.found), None)
    how = [*conditions(first, "each corpus"), *differing(first)] if first else []
    results = {row.of.recipe: as_table(row.found) if row.found else None for row in rows}

    def values(comparison: Any) -> Iterator[str]:
        for row in comparison.rows:
            bound, difference = row.bounds[comparison.quantity], row.differences[comparison.quantity]
            beside = f", {difference_of(difference)[1]}" if difference else ""
            yield with_error(bound.value, bound.stderr, ".2f") + beside

    return Shown(
        {"corpora": results, "differences": from_published, **_beside(rows)},
        [side_by_side(rows, [str(run) for run in runs], values)],
        [*how, *_notes(rows, from_published)],
    )


def _beside(rows: list[OnCorpus]) -> dict[str, Any]:
    from atat_zoo.measure.zero_shot import PUBLISHED

    return {
        "published": {row.of.recipe: dict(zip(PUBLISHED, row.of.published, strict=True)) for row in rows},
        "not_evaluated": {row.of.recipe: row.problem for row in rows if row.problem},
    }


def side_by_side(rows: list[OnCorpus], columns: list[str], values: Callable[[Any], Iterable[str]]) -> Cells:
    """Return columns and rows of the field's table, with what was found in columns of their own."""
    from atat_zoo.measure.zero_shot import PUBLISHED

    cells = []
    for row in rows:
        own = values(row.found) if row.found else ["not evaluated"] * len(columns)
        cells.append([row.of.title, row.of.split, *own, *(f"{value:.2f}" for value in row.of.published)])
    return ["corpus", "split", *columns, *(f"{name}, published" for name in PUBLISHED)], cells


def _notes(rows: list[OnCorpus], from_published: dict[str, list[str]]) -> list[str]:
    """Return what differs from the published figures, and why a corpus is not there."""
    lines = ["what differs from the published figures (arXiv:2406.07524):"]
    for text in dict.fromkeys(text for texts in from_published.values() for text in texts):
        runs = [run for run, texts in from_published.items() if text in texts]
        lines.append(f"  {text}" if len(runs) == len(from_published) else f"  {', '.join(runs)}: {text}")
    return lines + [f"{row.of.title}: {row.problem}" for row in rows if row.problem]
