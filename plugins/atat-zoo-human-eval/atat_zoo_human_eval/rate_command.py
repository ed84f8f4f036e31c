"""The command `atat rate`, for blind human evaluation of texts from several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import check_output, check_text, chosen, count, options, output
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.evaluation.results.format import NONE, cell, number
from atat_zoo.experiment.runs import write_json
from atat_zoo.generation.layout import TextForm
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.atomic_files import json_bytes, write_all
from atat_zoo.system.errors import UserError, clip

_QUESTIONS = "TOML file with one table per question (default: fluency, coherence and overall quality, from 1 to 5)."
_PROMPT = "Prompt that every run continues. Repeatable; --num-samples applies to each prompt."


@click.group()
def rate() -> None:
    """Evaluate texts from several runs with blind human ratings."""


@rate.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@output("--out", required=True, help="HTML file to write the form to; the key is written to the same folder.")
@count("-n --num-samples number", 1, "Number of texts per run and prompt.", 10)
@click.option("--prompt", "prompts", multiple=True, help=_PROMPT)
@click.option("--questions", "asked", type=click.Path(path_type=Path), help=_QUESTIONS)
@options("length", "seed", "sampler", "device")
def export(
    runs: tuple[Path, ...],
    out: Path,
    number: int,
    prompts: tuple[str, ...],
    asked: Path | None,
    length: int | None,
    seed: int,
    sampler: str | None,
    device: str,
) -> None:
    """Write a rating form with texts from each RUN in random order, and a key, which raters must not see.

    The form is one HTML file that works offline, does not reveal which run generated a text, and saves ratings as JSON
    or CSV. Every run generates the same number of texts with --length tokens (default: the shortest training length).
    """
    from atat_zoo_human_eval.rating_form import KEY, QUESTIONS, RatedText, RatingForm, check_size, questions_of

    # Every mistake is reported before torch is imported.
    if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
        raise UserError(f"--out {clip(out)} is not an HTML file; pass a name that ends in .html")
    key = out.with_suffix(KEY)
    for path in (out, key):
        if path.exists():  # without its key, the ratings of an earlier form could not be used
            raise UserError(
                f"--out {clip(out)}: {clip(path)} already exists; choose a different name, or delete the file first"
            )
    questions = questions_of(asked) if asked else QUESTIONS
    prompts = tuple(check_text(prompt, "--prompt") for prompt in prompts or ("",))
    check_size(runs, prompts, number)
    experiments = {run: chosen(run, (), sampler) for run in runs}
    length = length or min(experiment.data.length for experiment, _ in experiments.values())
    for experiment, tokenizer in experiments.values():
        for prompt in prompts:
            texts_of = TextForm.from_experiment(experiment, tokenizer)
            texts_of.request(experiment.parts["sampler"], number=number, length=length, prompt=prompt)
    from atat_zoo.generation.model import Model
    from atat_zoo_human_eval.rating_page import page

    texts, tables = list[RatedText](), list[dict[str, Any]]()
    with Bars(silent=False) as bars:
        for i, (run, (experiment, _)) in enumerate(experiments.items()):
            model, parts = Model.from_run(run, device), experiment.parts
            how = {"sampler": parts["sampler"], "guidance": parts["guidance"], "length": length, "seed": seed}
            for prompt in prompts:
                bars.working("writing", len(texts), len(runs) * len(prompts) * number)
                written = model.sample(number, prompt=prompt, **how).texts
                texts += [RatedText(run=i, text=text, prompt=prompt) for text in written]
            tables.append({"run": str(run), "step": model.step, "sampler": unstructure(parts["sampler"])})
    form = RatingForm.shuffled(questions, texts, tables, seed)
    write_all({key: json_bytes(form.key()), out: page(form).encode()})  # both or neither
    click.echo(f"{click.format_filename(out)}: {len(texts):,} texts, for the raters")
    click.echo(f"{click.format_filename(key)}: the key, which raters must not see")


@rate.command("import")
@click.argument("key", type=click.Path(path_type=Path), metavar="KEY")
@click.argument("ratings", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RATINGS...")
@output("--out", help="JSON file to write the results to (default: in the folder of KEY).")
@options("markdown", "json")
def import_ratings(key: Path, ratings: tuple[Path, ...], out: Path | None, as_markdown: bool, as_json: bool) -> None:
    """Compare the ratings of the runs. KEY is the form's key, and RATINGS are the saved files, one per rater."""
    from atat_zoo_human_eval.rating_form import KEY, RatingForm
    from atat_zoo_human_eval.ratings import ratings_of, unblinded

    out = out or key.parent / f"{key.name.removesuffix(KEY).removesuffix('.json')}.results.json"
    check_output(out, "--out", (key, ratings))
    form = RatingForm.from_key(key)
    result = unblinded(form, ratings_of(form, ratings))
    write_json(out, result.to_table())
    if as_json:
        print_json(result.to_table())
        return
    table(*_rows(result), as_markdown)
    click.echo("")
    texts = ", ".join(f"{size} of {run}" for run, size in zip(result.runs, result.texts, strict=True))
    raters = number(len(result.raters), "rater")
    for line in (
        f"{raters}; texts: {texts}. Brackets are 95 % CIs over texts, after averaging over raters (Student's t for",
        "means, Welch's for differences). They ignore the variation between raters and multiple comparisons.",
        "α: Krippendorff's ordinal α (1: perfect agreement, 0: chance). Krippendorff requires α ≥ 0.8 for firm",
        f"conclusions and α ≥ 0.667 for tentative ones. The results are in {click.format_filename(out)}.",
    ):
        click.echo(line + ("  " if as_markdown else ""))


def _rows(result: Any) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table, with a row for each run, for each difference and for the agreement."""
    answers = result.answers.values()
    rows = [
        [run, *(_with_ends(each.means[i], each.intervals[i], ".2f") for each in answers)]
        for i, run in enumerate(result.runs)
    ]
    for n, (b, a) in enumerate(result.pairs):
        cells = [_with_ends(each.means[b] - each.means[a], each.differences[n], "+.2f") for each in answers]
        rows.append([f"{result.runs[b]} − {result.runs[a]}", *cells])
    return ["", *result.answers], [*rows, ["α", *(cell(each.alpha, ".2f") for each in answers)]]


def _with_ends(value: float, interval: Any, digits: str) -> str:
    ends = f"[{interval.low:{digits}}, {interval.high:{digits}}]" if interval else NONE
    return f"{value:{digits}} {ends}"
