"""`atat bench`: cost and quality of every named sampler, and the benefit of the text on both sides of a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import NONE, named, number_option, options
from atat_zoo.cli.console import Bars, markdown, print_json, table
from atat_zoo.cli.judge import judge_of
from atat_zoo.errors import UserError
from atat_zoo.evaluation.naming import POLICY_BOUND, POLICY_LIKELIHOOD
from atat_zoo.samplers.named import at_steps, fitting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atat_zoo.evaluation.infilling import GapQuality
    from atat_zoo.evaluation.sampling import Bench, SamplerResult
    from atat_zoo.experiment import Experiment

STEPS = (16, 32, 64, 128)
POLICY_COLUMNS = ["policy nats/token", "to first", POLICY_BOUND, "at NFE"]


@click.group()
def bench() -> None:
    """Measure samplers, or infilling, on a run."""


@bench.command()
@options("run", "step")
@click.option("--by", "--judge", "by", help="The judge: a run with an exact likelihood, hf:NAME, or a table.")
@click.option(
    "--sampler",
    "wanted",
    multiple=True,
    help="A sampler, or a table {use = …} with its settings; every named sampler when absent. Repeatable.",
)
@click.option("--steps", multiple=True, type=click.IntRange(1), help="Steps; 16, 32, 64 and 128 when absent.")
@number_option(64, 2, "Texts for each sampler.")
@options("length", "seed")
@click.option(
    "--repeat", default=1, show_default=True, type=click.IntRange(1), help="Repetitions; the shortest time counts."
)
@click.option(
    "--sequences",
    default=64,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum number of held-out sequences for the policy bounds; 0 for no such bounds.",
)
@options("orders", "batch_size", "device", "markdown", "json")
def samplers(
    run: Path,
    step: int | None,
    by: str | None,
    wanted: tuple[str, ...],
    steps: tuple[int, ...],
    orders: int | None,
    device: str,
    as_markdown: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Generate texts with the final model of RUN and every named sampler, and score them with the judge --by.

    The policy bound is on the likelihood of held-out text under the sampler, at its own number of evaluations.

    The first row, ancestral sampling with the most steps, is the reference for the others. If the model cannot
    use that sampler, the first possible one is. A sampler given as a table is used unchanged. The result is also saved
    in RUN's evaluations/.
    """
    from atat_zoo.experiment import from_table
    from atat_zoo.run import RunFolder

    chosen = None if by is None else judge_of(by, run)
    experiment = from_table(RunFolder(run).table(), where=f"{run}/resolved.toml")
    rows, refused = settings(experiment, wanted, sorted(set(steps) or STEPS))
    scorer = None if chosen is None else chosen.build(device)
    from atat_zoo.evaluation.sampling import bench as measure
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    with Bars(silent=as_json or as_markdown) as bars:
        result = measure(model, run, scorer, rows, orders=orders or 1, progress=bars.working, **given)
    if as_json:
        print_json({"run": str(run), **result.to_table(), "refused": refused})
    else:
        show_samplers(result, refused, as_markdown)


def settings(
    experiment: Experiment, wanted: Sequence[str], steps: Sequence[int]
) -> tuple[list[tuple[str, int | None, Any]], dict[str, str]]:
    """Return the samplers to measure: name, steps and specification; and the unsuitable ones, with the reason.

    Raises:
        UserError: when a sampler in `wanted` does not fit the model, or does not exist.
    """
    rows = [row for text in wanted for row in variants(text, steps)]
    measured, refused = fitting(experiment, steps, rows if wanted else None)
    for name in wanted:
        if name in refused:
            raise UserError(f"--sampler {name}: {refused[name]}")
    return measured, refused


def variants(text: str, steps: Sequence[int]) -> list[tuple[str, int | None, Any]]:
    """Return a sampler at each number of steps; unchanged if it is a table."""
    spec = named("sampler", text)
    return [(text, None, spec)] if text.startswith("{") else at_steps(text, steps)


def show_samplers(result: Bench, refused: dict[str, str], as_markdown: bool) -> None:
    """Print a table and its legend."""
    from atat_zoo.evaluation.naming import GENERATIVE_PERPLEXITY
    from atat_zoo.evaluation.sampling import CLOSE

    judged = result.judge is not None
    columns = ["sampler", "steps", "evaluations", "tokens/s", "time"]
    columns += POLICY_COLUMNS if result.prices else []
    columns += ["entropy", "distinct-2"]
    rows = [
        [
            m.name,
            "" if m.steps is None else str(m.steps),
            f"{m.nfe:.1f}",
            f"{m.tokens_per_second:,.0f}",
            f"{result.share(m):.2f}",
            *(policy_cells(m) if result.prices else []),
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
    if result.prices:
        click.echo("\n".join(policy_legend(result)))
    if judged:
        click.echo(
            f"As good: {GENERATIVE_PERPLEXITY} at most {CLOSE:.0%} above the first row's, and entropy within "
            f"{CLOSE:.0%} of it."
        )
    for name, why in refused.items():
        click.echo(f"left out: {name}: {why}")


def policy_cells(result: SamplerResult) -> list[str]:
    """Return the columns of a sampler's policy bound."""
    bound = result.policy
    if bound is None:
        return [NONE] * len(POLICY_COLUMNS)
    sign = "≤" if bound.quantity == POLICY_BOUND else "="
    difference = result.policy_difference
    return [
        f"{bound.nats_per_token:.3f} ± {bound.nats_per_token_stderr:.3f}",
        "" if difference is None else f"{difference:+.3f} ± {result.policy_difference_stderr:.3f}",
        f"{sign} {bound.value:.1f}",
        f"{bound.nfe:.1f}",
    ]


def policy_legend(result: Bench) -> list[str]:
    """Return sentences on the policy bounds, and on the samplers that have none."""
    priced = next((m.policy for m in result.measured if m.policy), None)
    text = []
    if priced:
        orders = f"{result.orders} orders inside the logarithm" if result.orders > 1 else "one order"
        text = [
            f"Policy: −log p of {priced.sequences} {priced.split} sequences along a sampler's own steps, seed "
            f"{priced.seed}, and its difference from the first row's on the same sequences; {POLICY_BOUND}: its "
            "exponential, at that number of evaluations (NFE).",
            f"=: the {POLICY_LIKELIHOOD}, exact because the order is deterministic; ≤: a bound, {orders}.",
        ]
    reasons: dict[str, list[str]] = {}
    for m in result.measured:
        if m.unpriced and m.name not in reasons.setdefault(m.unpriced, []):
            reasons[m.unpriced].append(m.name)
    return text + [f"no {POLICY_BOUND} ({NONE}): {', '.join(names)}: {why}" for why, names in reasons.items()]


@bench.command()
@options("run", "step")
@click.option("--gap", default=5, show_default=True, type=click.IntRange(1), help="Tokens in a gap.")
@number_option(256, 0, "Maximum number of texts; 0 for all.")
@options("batch_size", "split", "mask_seed", "device", "json")
def infilling(
    run: Path, step: int | None, split: Any, seed: int | None, device: str, as_json: bool, **given: Any
) -> None:
    """Cut gaps out of held-out texts; print RUN's likelihood of the true words, given both sides or only the left.

    The result is also saved in RUN's evaluations/.
    """
    from atat_zoo.run import RunFolder

    RunFolder(run).model_at(step)  # a mistake is reported before torch is imported
    from atat_zoo.evaluation.infilling import infilling_of_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    with Bars(silent=as_json) as bars:
        quality = infilling_of_run(
            model,
            run,
            split=split or model.experiment.evaluation.split,
            seed=model.experiment.seed if seed is None else seed,
            progress=bars.evaluating,
            **given,
        )
    if as_json:
        print_json({"run": str(run), **quality.to_table()})
    else:
        show_infilling(quality)


def show_infilling(quality: GapQuality) -> None:
    """Print a table, and a sentence about it."""
    click.echo(
        f"{quality.number} {quality.split} texts of {quality.length} tokens with a gap of {quality.gap}, "
        f"seed {quality.seed}; step {quality.step}, {'EMA' if quality.ema else 'final'} weights"
    )
    rows = [
        ["both sides", _number(quality.both, quality.both_stderr)],
        ["left side only", _number(quality.left, quality.left_stderr)],
        ["difference", _number(quality.difference, quality.difference_stderr)],
    ]
    table(["given", "log-likelihood of the true words, nats a token"], rows)
    if quality.difference == 0:
        click.echo("It is the same: the model does not look at the right side.")
    else:
        click.echo(f"In {quality.better:.0%} of the texts the true words are likelier given both sides.")


def _number(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}"
