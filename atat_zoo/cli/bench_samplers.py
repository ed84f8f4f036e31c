"""`atat bench samplers`: every named sampler at several numbers of steps, by cost and by what a judge makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.choosing import named
from atat_zoo.cli.console import Bars, json_option, markdown, print_json, table
from atat_zoo.cli.judge import judge_of
from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atat_zoo.evaluation.sampling import Bench
    from atat_zoo.experiment import Experiment

# Needs its parts named one by one: it is no sampler of its own.
UNNAMED = frozenset({"combination"})
# What the others are held against.
REFERENCE = "ancestral"
STEPS = (16, 32, 64, 128)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--by", "--judge", "by", help="A run with an exact likelihood, hf:NAME, or a table: judges the texts.")
@click.option(
    "--sampler",
    "wanted",
    multiple=True,
    help="A sampler, or a table {use = …} with settings of its own; every named one when absent. Can be repeated.",
)
@click.option("--steps", multiple=True, type=click.IntRange(1), help="Steps; 16, 32, 64 and 128 when absent.")
@click.option("--number", default=64, show_default=True, type=click.IntRange(2), help="Texts of each.")
@click.option("--length", type=click.IntRange(1), help="Tokens in a text; as in training when absent.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The same seed, the same texts.")
@click.option(
    "--repeat", default=1, show_default=True, type=click.IntRange(1), help="Times each writes; the least time counts."
)
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Texts at once.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
@json_option
def samplers(
    run: Path,
    by: str | None,
    wanted: tuple[str, ...],
    steps: tuple[int, ...],
    number: int,
    length: int | None,
    seed: int,
    repeat: int,
    batch_size: int,
    device: str,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Let the final model of RUN write with every named sampler, and the judge --by score the texts.

    The first row, ancestral sampling with the most steps, is what the others are held against; for a model that takes
    no such sampler it is the first one that it takes. A sampler given as a table is taken as it is. The result goes to
    RUN's evaluations/ too.
    """
    from atat_zoo.experiment import from_table
    from atat_zoo.run import RunFolder

    chosen = None if by is None else judge_of(by, run)
    experiment = from_table(RunFolder(run).table(), where=f"{run}/resolved.toml")
    rows, refused = settings(experiment, wanted, sorted(set(steps) or STEPS))
    scorer = None if chosen is None else chosen.build(device)
    from atat_zoo.evaluation.sampling import bench
    from atat_zoo.model import Model

    model = Model.from_run(run, device)
    with Bars(silent=as_json or as_markdown) as bars:
        result = bench(
            model,
            run,
            scorer,
            rows,
            number=number,
            length=length,
            seed=seed,
            repeat=repeat,
            batch_size=batch_size,
            progress=bars.working,
        )
    if as_json:
        print_json({"run": str(run), **result.to_table(), "refused": refused})
    else:
        show(result, refused, as_markdown)


def settings(
    experiment: Experiment, wanted: Sequence[str], steps: Sequence[int]
) -> tuple[list[tuple[str, int | None, Any]], dict[str, str]]:
    """Return what is measured: name, steps and specification; and what the model refuses, with its sentence.

    Raises:
        UserError: when a sampler that was asked for by name is refused, or there is no such sampler.
    """
    names = list(wanted) or [name for name in Zoo.load().names("sampler") if name not in UNNAMED]
    rows = [(text, number, spec) for text in names for number, spec in variants(text, steps)]
    first = (REFERENCE, steps[-1], variants(REFERENCE, steps[-1:])[0][1])
    measured: list[tuple[str, int | None, Any]] = []
    refused: dict[str, str] = {}
    for name, number, spec in [first, *(row for row in rows if row != first)]:
        problems = misfits(experiment, spec)
        if not problems:
            measured.append((name, number, spec))
        elif name in wanted:
            raise UserError(f"--sampler {name}: {problems[0]}")
        else:
            refused[name] = problems[0]
    return measured, refused


def misfits(experiment: Experiment, spec: Any) -> list[str]:
    """Return the problems of an experiment with a sampler in place of its own, a sentence each."""
    import attrs

    from atat_zoo.experiment import conflicts

    return conflicts(attrs.evolve(experiment, parts={**experiment.parts, "sampler": spec}))


def variants(text: str, steps: Sequence[int]) -> list[tuple[int | None, Any]]:
    """Return a sampler at each number of steps; as it is, where it is given as a table or its steps cannot be set."""
    spec = named("sampler", text)
    if text.startswith("{"):
        return [(None, spec)]
    known = Zoo.load().describe("sampler", text).parameters
    cap = next((name for name in ("steps", "max_steps") if name in known), None)
    if cap is None:
        return [(None, spec)]
    settings: list[tuple[int | None, Any]] = []
    for number in steps:
        values: dict[str, Any] = {"use": text, cap: number}
        if "min_steps" in known:
            values["min_steps"] = min(spec.min_steps, number)
        settings.append((number, Zoo.load().spec("sampler", values)))
    return settings


def show(result: Bench, refused: dict[str, str], as_markdown: bool) -> None:
    """Print a table, and what one must know to read it."""
    from atat_zoo.evaluation.naming import GENERATIVE_PERPLEXITY
    from atat_zoo.evaluation.sampling import CLOSE

    judged = result.judge is not None
    columns = ["sampler", "steps", "evaluations", "tokens/s", "time", "entropy", "distinct-2"]
    rows = [
        [
            m.name,
            "" if m.steps is None else str(m.steps),
            f"{m.nfe:.1f}",
            f"{m.tokens_per_second:,.0f}",
            f"{result.share(m):.2f}",
            f"{m.unigram_entropy:.3f}",
            "" if m.distinct_2 is None else f"{m.distinct_2:.3f}",
        ]
        for m in result.measured
    ]
    if judged:
        columns += [GENERATIVE_PERPLEXITY, "as good"]
        for row, m in zip(rows, result.measured, strict=True):
            row += [f"{m.value:.1f} ± {m.stderr:.1f}", "yes" if result.as_good(m) else ""]
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    click.echo(
        f"{result.number} texts of {result.length} tokens each, seed {result.seed}, step {result.step}, "
        f"on {result.device} with {threads}; "
        + (f"judge: {result.judge}" if judged else "no judge: name one with --by to have the texts scored")
    )
    if as_markdown:
        click.echo("")
    (markdown if as_markdown else table)(columns, rows)
    click.echo("\nEvaluations are a text's, on average; time is over that of the first row.")
    if judged:
        click.echo(
            f"As good: {GENERATIVE_PERPLEXITY} at most {CLOSE:.0%} above the first row's, and entropy within "
            f"{CLOSE:.0%} of it."
        )
    for name, why in refused.items():
        click.echo(f"left out: {name}: {why}")
