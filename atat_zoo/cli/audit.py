"""`atat audit`: models priced on one text, side by side, beside what is published and how that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import count, even, named, options, other_text
from atat_zoo.cli.console import Bars
from atat_zoo.cli.judge import judge_of
from atat_zoo.cli.tasks import show_side_by_side
from atat_zoo.errors import UserError
from atat_zoo.evaluation.tasks.protocol import PROTOCOLS
from atat_zoo.experiment import from_table
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.registry import Zoo, problems_of

if TYPE_CHECKING:
    from atat_zoo.evaluation.tasks import Task

_PROTOCOL = "Measure as published code does, too. Repeatable."


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@options("text", "split")
@click.option("--protocol", "protocols", multiple=True, type=click.Choice(list(PROTOCOLS)), help=_PROTOCOL)
@click.option("--sampler", "samplers", multiple=True, help="Whose steps are priced; ancestral when absent. Repeatable.")
@click.option("--by", "--judge", "by", help="The judge of what samplers write: a run, hf:NAME, or a table.")
@count("--sequences", 0, "Maximum number of sequences of the bounds; 0 for all.", 1024)
@count("--draws", 1, "Masks drawn for every sequence.", 4)
@count("--orders", 2, "Orders of the bracket, an even number.", 16)
@count("--bracket", 0, "Sequences of the bracket, each of whose tokens takes an evaluation an order; 0: none.", 16)
@count("--prices", 0, "Sequences that samplers are priced on; 0: none.", 64)
@count("--number", 0, "Texts that each sampler writes.", 16)
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
    """Price one model or several on the same text.

    Printed are the bound by two estimators, over bytes too; calibration; a bound by many orders and how far below it
    the truth may lie; what samplers pay, in how many evaluations, and what they write; and with --protocol the number
    that published code would print, with what of it is due to its framing and its draws. Published models
    become runs by `atat import`. What was measured once is read again, so an audit that was interrupted goes on.
    """
    judge = judge_of(by, runs[0]) if by else None
    tasks = list(_tasks(other_text(text).get("corpus"), split, judge, **given))
    experiments = {run: from_table(RunFolder(run).table(), where=str(RunFolder(run).resolved)) for run in runs}
    for problem in problems_of(judge, experiments[runs[0]]) if judge else ():
        raise UserError(str(problem))
    if missing := next((why for task in tasks for why in task.absent()), None):
        raise UserError(missing)
    from atat_zoo.evaluation.tasks import measure_tasks
    from atat_zoo.generation.model import Model

    seed, results = experiments[runs[0]].seed if seed is None else seed, {}
    with Bars(silent=as_json or as_markdown) as bars:
        for run in runs:  # one model in memory at a time
            model = Model.from_run(run, device)
            results[run] = measure_tasks(tasks, model, run, seed=seed, leave_out=True, progress=bars.working)
            del model  # before the next is loaded
    show_side_by_side(results, runs[0], as_markdown=as_markdown, as_json=as_json)


def _tasks(
    corpus: Any,
    split: str | None,
    judge: Any,
    *,
    protocols: tuple[str, ...],
    samplers: tuple[str, ...],
    sequences: int,
    draws: int,
    orders: int,
    bracket: int,
    prices: int,
    number: int,
) -> Any:
    """Yield what is measured of each model."""
    zoo, of_text = Zoo.load(), {"corpus": corpus, "split": split or "validation"}

    def task(name: str, **settings: Any) -> Task:
        spec: Task = zoo.spec("task", {"use": name, **of_text, **settings})
        return spec

    yield task("held_out", sequences=sequences, draws=draws)
    for protocol in dict.fromkeys(protocols):
        yield task("protocol", of=protocol, sequences=sequences, draws=draws)
    if bracket:
        yield task("bracket", sequences=bracket, orders=even(orders))
    if prices:
        each = [named("sampler", sampler) for sampler in samplers or ("ancestral",)]
        yield task("prices", samplers=each, sequences=prices, texts=number, judge=judge)
