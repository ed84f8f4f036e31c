"""`atat bench`: compare the cost of samplers and the texts that they generate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import chosen, count, named, options
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.cli.judge_command import judge_of
from atat_zoo.evaluation.results.format import NONE, with_error
from atat_zoo.evaluation.results.format import number as number_of
from atat_zoo.evaluation.results.quantity_names import GENERATIVE_PERPLEXITY, POLICY_BOUND, POLICY_LIKELIHOOD
from atat_zoo.experiment import Experiment
from atat_zoo.generation.samplers.published_samplers import at_steps, fitting
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from atat_zoo.evaluation.sample_quality import Bench, SamplerResult

STEPS = (16, 32, 64, 128)
_WANTED = "Sampler: a name, or a table {use = …} (default: all that fit the run). Repeatable."
POLICY_COLUMNS = ["policy nats/token", "to first", POLICY_BOUND, "at NFE"]


@click.group()
def bench() -> None:
    """Benchmark a run."""


@bench.command()
@options("run", "step")
@click.option("--judge", "by", help="Judge model: a run with an exact likelihood, hf:NAME, or a table {use = …}.")
@click.option("--sampler", "wanted", multiple=True, help=_WANTED)
@count("--steps", 1, "Decoding steps (default: 16, 32, 64 and 128). Repeatable.", multiple=True)
@count("-n --num-samples number", 2, "Texts per sampler.", 64)
@options("length", "seed")
@count("--repeat", 1, "Number of repetitions; the shortest time is reported.", 1)
@count("--sequences", 0, "Maximum number of held-out sequences for the policy bound; 0 skips the bound.", 64)
@options("orders", "batch_size", "device", "markdown", "json")
def samplers(
    run: Path,
    step: int | str | None,
    by: str | None,
    wanted: tuple[str, ...],
    steps: tuple[int, ...],
    number: int,
    length: int | None,
    seed: int,
    repeat: int,
    sequences: int,
    orders: int | None,
    batch_size: int,
    device: str,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Generate text with RUN and each sampler, and score it with the judge model given by --judge.

    The table also shows each sampler's policy bound on held-out text and its forward passes per text (NFE). The first
    row is the reference for all others: ancestral sampling with the most steps or, if it does not fit the run, the
    first sampler that fits. Results are saved in the run's evaluations/.
    """
    judge = judge_of(by, run) if by else None
    experiment, tokenizer = chosen(run, (), None, step)
    rows, refused = settings(experiment, wanted, sorted(set(steps) or STEPS))
    scorer = judge.build(device) if judge else None
    from atat_zoo.evaluation.sample_quality import bench as measure
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, device, step, experiment=experiment, tokenizer=tokenizer)
    with Bars(silent=as_json or as_markdown) as bars:
        result = measure(
            model,
            run,
            scorer,
            rows,
            number=number,
            length=length,
            seed=seed,
            repeat=repeat,
            batch_size=batch_size,
            sequences=sequences,
            orders=orders or 1,
            progress=bars.working,
        )
    if as_json:
        print_json({"run": str(run), **result.to_table(), "refused": refused})
    else:
        _show_samplers(result, refused, as_markdown)


def settings(
    experiment: Experiment, wanted: Sequence[str], steps: Sequence[int]
) -> tuple[list[tuple[str, int | None, Any]], dict[str, str]]:
    """Return samplers that fit (name, steps, component), and why others do not; raise a `UserError` for wanted ones."""
    rows: list[tuple[str, int | None, Any]] = []
    for text in wanted:
        spec = named("sampler", text)
        rows += [(text, None, spec)] if text.startswith("{") else at_steps(text, steps)
    measured, refused = fitting(experiment, steps, rows if wanted else None)
    for name in wanted:
        if name in refused:
            raise UserError(f"--sampler {name}: {refused[name]}")
    return measured, refused


def _show_samplers(result: Bench, refused: dict[str, str], as_markdown: bool) -> None:
    from atat_zoo.evaluation.sample_quality import CLOSE

    judged, priced = result.judge is not None, result.prices
    columns = ["sampler", "steps", "NFE", "tokens/s", "relative time", *(POLICY_COLUMNS if priced else [])]
    columns += ["entropy", "distinct-2", *([GENERATIVE_PERPLEXITY, "as good"] if judged else [])]
    rows = []
    for m in result.measured:
        row = [m.name, "" if m.steps is None else str(m.steps), f"{m.nfe:.1f}", f"{m.tokens_per_second:,.0f}"]
        row += [f"{result.share(m):.2f}", *(_policy_cells(m) if priced else [])]
        row += [f"{m.unigram_entropy:.3f}", "" if m.distinct_2 is None else f"{m.distinct_2:.3f}"]
        row += [with_error(m.value, m.stderr, ".1f"), "yes" if result.as_good(m) else ""] if judged else []
        rows.append(row)
    judge = f"judge: {result.judge}" if judged else "no judge: pass --judge to score the texts"
    click.echo(
        f"{number_of(result.number, 'text')} of {result.length} tokens each, seed {result.seed}, step {result.step}, "
        f"on {result.device} with {number_of(result.threads, 'thread')}; {judge}" + ("\n" if as_markdown else "")
    )
    table(columns, rows, as_markdown)
    click.echo("\nNFE: mean number of forward passes per text; relative time: time divided by the first row's time.")
    if priced:
        click.echo("\n".join(_policy_legend(result)))
    if judged:
        worst = f"at most {CLOSE:.0%} above the first row's, and entropy within {CLOSE:.0%} of the first row's"
        click.echo(f"As good: {GENERATIVE_PERPLEXITY} {worst}.")
    for name, why in refused.items():
        click.echo(f"left out: {name}: {why}")


def _policy_cells(result: SamplerResult) -> list[str]:
    bound = result.policy
    if bound is None:
        return [NONE] * len(POLICY_COLUMNS)
    sign, difference = "≤" if bound.quantity == POLICY_BOUND else "=", result.policy_difference
    return [
        with_error(bound.nats_per_token, bound.nats_per_token_stderr, ".3f"),
        "" if difference is None else with_error(difference, result.policy_difference_stderr, ".3f", "+"),
        f"{sign} {bound.value:.1f}",
        f"{bound.nfe:.1f}",
    ]


def _policy_legend(result: Bench) -> list[str]:
    """Return sentences that explain the policy bounds and why some samplers have none."""
    policy = next((m.policy for m in result.measured if m.policy), None)
    lines = []
    if policy:
        orders = f"the probability averaged over {result.orders} orders" if result.orders > 1 else "one order"
        lines = [
            f"policy nats/token: NLL of {policy.sequences} {policy.split} sequences along the sampler's own decoding "
            f"steps, seed {policy.seed}; to first: its difference from the first row's on the same sequences; "
            f"{POLICY_BOUND}: the exponential of the NLL, at the given NFE.",
            f"=: the {POLICY_LIKELIHOOD}, exact because the order is deterministic; ≤: a bound from {orders}.",
        ]
    reasons: dict[str, list[str]] = {}
    for m in result.measured:
        if m.unpriced and m.name not in reasons.setdefault(m.unpriced, []):
            reasons[m.unpriced].append(m.name)
    return lines + [f"no {POLICY_BOUND} ({NONE}): {', '.join(names)}: {why}" for why, names in reasons.items()]
