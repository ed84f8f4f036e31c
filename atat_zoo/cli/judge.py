"""`atat judge`: generate text with a run, and score it with another model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import NONE, named, number_option, options, with_options, with_sampler
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from atat_zoo.evaluation.generative import Scores
    from atat_zoo.evaluation.judged import JudgedRun

HUB = "hf:"


@click.command()
@options("run", "overrides", "step")
@click.option(
    "--by",
    "--judge",
    "by",
    required=True,
    help="A run with an exact likelihood, hf:NAME for a model of the Hugging Face hub, or a table {use = …}.",
)
@number_option(64, 1, "Number of texts.")
@options("length", "seed", "sampler", "split")
@click.option("--mauve", is_flag=True, help="MAUVE against held-out text, on the judge's features.")
@click.option(
    "--ngram",
    "ngrams",
    multiple=True,
    type=click.IntRange(1),
    help="n of the n-grams to look up in the training text; 4, 8 and 13 when absent. Repeatable.",
)
@options("device", "json")
def judge(
    run: Path,
    overrides: tuple[str, ...],
    step: int | None,
    by: str,
    number: int,
    sampler: str | None,
    split: str | None,
    mauve: bool,
    ngrams: tuple[int, ...],
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Generate text with the final model of RUN; score it and held-out text of the same length with the judge --by.

    The result is also saved in RUN's evaluations/.
    """
    from atat_zoo.experiment import from_overrides
    from atat_zoo.run import RunFolder

    # Mistakes in the names are reported before torch is imported.
    chosen = judge_of(by, run)
    experiment = from_overrides(RunFolder(run).table(), with_sampler(overrides, sampler), f"{run}/resolved.toml")
    if mauve:
        from atat_zoo.evaluation.mauve import check

        check(number)
    scorer = chosen.build(device)
    from atat_zoo.evaluation.judged import SIZES, judge_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    with Bars(silent=as_json) as bars:
        judged = judge_run(
            model,
            run,
            scorer,
            chosen,
            sampler=experiment.parts["sampler"],
            spec=with_options(model.experiment.evaluation, {"split": split}),
            number=number,
            mauve=mauve,
            sizes=tuple(sorted(set(ngrams))) or SIZES,
            progress=bars.working,
            **given,
        )
    if as_json:
        print_json({"run": str(run), **judged.to_table()})
    else:
        show(judged)


def judge_of(text: str, run: Path) -> Any:
    """Return the judge for a value of `--by`: a run folder, `hf:` and a model of the hub, or a table.

    Raises:
        UserError: when it names no judge, or the judged run itself.
    """
    judge = _judge(text)
    if judge.folder is not None and os.path.realpath(judge.folder) == os.path.realpath(run):
        raise UserError(f"--by {text}: a run does not judge its own text; name another run, or hf:NAME")
    return judge


def _judge(text: str) -> Any:
    if text.startswith("{"):
        return named("judge", text)
    if text.startswith(HUB):
        return Zoo.load().spec("judge", {"use": "huggingface", "model": text.removeprefix(HUB)})
    if not Path(text).is_dir():
        raise UserError(
            f"--by {text}: there is no folder {text}; name the folder of a run, {HUB}NAME for a model of the "
            "Hugging Face hub, or a table like {use = 'huggingface', model = 'gpt2'}"
        )
    return Zoo.load().spec("judge", {"use": "run", "path": text})


def show(judged: JudgedRun) -> None:
    """Print a table, with notes on how to read it."""
    from atat_zoo.evaluation.mauve import RELIABLE

    click.echo(
        f"{judged.number} texts of {judged.length} tokens by {judged.sampler['use']}, seed {judged.seed}, "
        f"step {judged.step}"
    )
    click.echo(f"judge: {judged.judge}")
    pairs = zip(numbers(judged.model), numbers(judged.data), strict=True)
    rows = [[name, mine, data] for (name, mine), (_, data) in pairs if (mine, data) != (NONE, NONE)]
    table(["", "written", f"{judged.split} text"], rows)
    if judged.data.texts != judged.number:
        click.echo(f"There are only {judged.data.texts} held-out texts.")
    if judged.model.mauve is not None and judged.number < RELIABLE:
        click.echo(f"MAUVE of fewer than {RELIABLE:,} texts hardly tells models apart.")
    if judged.model.overlap.longest:
        click.echo(f"longest copy: {judged.model.longest_copy!r}")


def numbers(scores: Scores) -> list[tuple[str, str]]:
    """Return the scores as pairs of readable names and values."""
    from atat_zoo.evaluation.naming import GENERATIVE_PERPLEXITY

    def number(value: float | None, form: str) -> str:
        return NONE if value is None else format(value, form)

    nfe = NONE if scores.nfe is None else f"{scores.nfe:.1f} (at most {scores.max_nfe})"
    return [
        (GENERATIVE_PERPLEXITY, f"{scores.value:.1f} ± {scores.stderr:.1f}"),
        ("unigram entropy, nats", number(scores.unigram_entropy, ".3f")),
        ("distinct-2", number(scores.distinct_2, ".3f")),
        ("network evaluations a text", nfe),
        ("tokens per second", number(scores.tokens_per_second, ",.0f")),
        ("MAUVE", number(scores.mauve, ".3f")),
        *((f"{n}-grams copied", number(scores.overlap.share(n), ".1%")) for n in scores.overlap.copied),
        ("longest copy, tokens", str(scores.overlap.longest)),
    ]
