"""`atat judge`: score generated text and held-out text with a judge model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import count, named, options, with_options, with_sampler
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.evaluation.judges import judges_itself
from atat_zoo.evaluation.mauve import RELIABLE_OF_MAUVE, check_mauve
from atat_zoo.evaluation.results.format import NONE, cell, with_error
from atat_zoo.evaluation.results.format import number as counted
from atat_zoo.evaluation.results.quantity_names import GENERATIVE_PERPLEXITY, words
from atat_zoo.experiment import from_overrides
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from atat_zoo.evaluation.sample_quality import JudgedRun, Scores

HUB = "hf:"
_BY = "Judge model: a run with an exact likelihood, hf:NAME for a model on the Hugging Face hub, or a table {use = …}."
_NGRAM = "Length n of the n-grams to look up in the training text (default: 4, 8 and 13). Repeatable."


@click.command()
@options("run", "overrides", "step")
@click.option("--judge", "by", required=True, help=_BY)
@count("-n --num-samples number", 1, "Number of texts.", 64)
@options("length", "seed", "sampler", "split")
@click.option("--mauve", is_flag=True, help="Compute MAUVE against held-out text from the judge's features.")
@count("--ngram", 1, _NGRAM, multiple=True)
@options("metrics", "device", "json")
def judge(
    run: Path,
    overrides: tuple[str, ...],
    step: int | str | None,
    by: str,
    number: int,
    sampler: str | None,
    split: str | None,
    mauve: bool,
    ngram: tuple[int, ...],
    metrics: tuple[str, ...],
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Generate text with RUN, and score it and held-out text of the same length with the judge model given by --judge.

    The scores are saved in the run's evaluations/.
    """
    # Mistakes in the names are reported before torch is imported.
    chosen = judge_of(by, run)
    experiment = from_overrides(RunFolder(run).table(), with_sampler(overrides, sampler), f"{run}/resolved.toml")
    further = tuple(named("metric", each) for each in metrics)
    if wrong := [metric.name for metric in further if metric.reads != "texts"]:
        raise UserError(f"--metric {wrong[0]} does not score texts; pass it to `atat eval`")
    if mauve:
        check_mauve(number)
    scorer = chosen.build(device)
    from atat_zoo.evaluation.sample_quality import SIZES, judge_run
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, device, step)
    spec = with_options(model.experiment.evaluation, {"split": split, "metrics": further})
    given |= {"sampler": experiment.parts["sampler"], "sizes": tuple(sorted(set(ngram))) or SIZES}
    with Bars(silent=as_json) as bars:
        judged = judge_run(
            model, run, scorer, chosen, spec=spec, number=number, mauve=mauve, progress=bars.working, **given
        )
    if as_json:
        print_json({"run": str(run), **judged.to_table()})
    else:
        _show(judged)


def judge_of(text: str, run: Path) -> Any:
    """Return the judge model for a value of `--judge`: a run folder, `hf:NAME`, or a table."""
    if text.startswith("{"):
        judge = named("judge", text)
    elif text.startswith(HUB):
        judge = Zoo.load().spec("judge", {"use": "huggingface", "model": text.removeprefix(HUB)})
    elif Path(text).is_dir():
        judge = Zoo.load().spec("judge", {"use": "run", "path": text})
    else:
        raise UserError(
            f"--judge {text}: folder {text} does not exist; pass the folder of a run, {HUB}NAME for a model on the "
            "Hugging Face hub, or a table like {use = 'huggingface', model = 'gpt2'}"
        )
    if judges_itself(judge, run):
        raise UserError(f"--judge {text}: a run cannot judge its own text; pass another run, or hf:NAME")
    return judge


def _show(judged: JudgedRun) -> None:
    texts = f"{counted(judged.number, 'text')} of {judged.length} tokens by {judged.sampler['use']}"
    click.echo(f"{texts}, seed {judged.seed}, step {judged.step}\njudge: {judged.judge}")
    pairs = zip(_numbers(judged.model), _numbers(judged.data), strict=True)
    rows = [[name, mine, data] for (name, mine), (_, data) in pairs if (mine, data) != (NONE, NONE)]
    table(["", "generated", f"{judged.split} text"], rows)
    if judged.data.texts != judged.number:
        click.echo(f"Only {judged.data.texts} held-out texts were available.")
    if judged.model.mauve is not None and judged.number < RELIABLE_OF_MAUVE:
        click.echo(f"MAUVE is not reliable on fewer than {RELIABLE_OF_MAUVE:,} texts.")
    if judged.model.longest_copy_tokens:
        click.echo(f"longest copy: {judged.model.longest_copy!r}")


def _numbers(scores: Scores) -> list[tuple[str, str]]:
    return [
        (GENERATIVE_PERPLEXITY, with_error(scores.value, scores.stderr, ".1f")),
        ("unigram entropy, nats", cell(scores.unigram_entropy, ".3f")),
        ("distinct-2", cell(scores.distinct_2, ".3f")),
        ("NFE per text", cell(scores.nfe, ".1f", f" (at most {scores.max_nfe})")),
        ("tokens per second", cell(scores.tokens_per_second, ",.0f")),
        ("MAUVE", cell(scores.mauve, ".3f")),
        *((f"{n}-grams copied", cell(share, ".1%")) for n, share in scores.copied.items()),
        ("longest copy, tokens", str(scores.longest_copy_tokens)),
        *((words(title), value.said) for title, value in scores.metrics.items()),
    ]
