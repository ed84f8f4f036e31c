"""`atat eval` and `atat importance`: evaluate a run's bounds and its importance estimates on held-out text."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import HELD_OUT, chosen, even, options, other_text, with_options, with_parts
from atat_zoo.cli.audit_command import evaluate_tasks
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.cli.packages import PACKAGES
from atat_zoo.evaluation.results import quantity_names
from atat_zoo.evaluation.results.evaluation import Evaluation
from atat_zoo.evaluation.results.format import NONE, aligned, cell, errors_over, number, settings, with_error
from atat_zoo.experiment import from_run
from atat_zoo.experiment.effects import require_estimator
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import install_command

if TYPE_CHECKING:
    from atat_zoo.evaluation.policy import PolicyValue


@click.command("eval")
@options("run", "overrides", "step", "text", "tasks", *HELD_OUT, "sampler", "orders", "device", "json")
def evaluate(
    run: Path,
    overrides: tuple[str, ...],
    step: int | str | None,
    text: str | None,
    tasks: tuple[str, ...],
    seed: int | None,
    sampler: str | None,
    orders: int | None,
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Evaluate the final model of RUN on held-out text, and save the result in the run's evaluations/.

    --corpus evaluates zero-shot on different text: files, or a corpus that ships with atat_zoo, such as ptb.

    --task evaluates a task instead, such as zero_shot, which has the seven corpora from MDLM's zero-shot table.

    --bound policy also computes the policy bound of the run's sampler, or of the one given by --sampler,
    sampler.KEY=VALUE and guidance.use=….
    --bound bracket computes the policy bound with --orders decoding orders (an even number, 16 by default), and a lower
    limit of the true NLL.
    """
    # Mistakes in these are reported before torch is imported.
    if tasks:
        given |= {"overrides": overrides, "text": text, "sampler": sampler, "orders": orders}
        evaluate_tasks([run], tasks, step=step, seed=seed, device=device, as_json=as_json, **given)
        return
    bracket = given["bound"] == quantity_names.BRACKET
    policy = bracket or given["bound"] == quantity_names.POLICY
    if bracket:
        orders = even(orders or 16)
    if policy:
        parts = chosen(run, overrides, sampler, step)[0].parts
        if why := parts["sampler"].no_policy_bound_because:
            others = "choose another sampler"
            raise UserError(f"--bound policy does not cover sampler {parts['sampler'].name!r}: {why}; {others}")
        given["bound"] = None
    elif overrides or sampler is not None or orders is not None:
        word = overrides[0] if overrides else "--orders" if sampler is None else "--sampler"
        raise UserError(f"{word} only works with --bound policy or bracket; add --bound policy, or leave {word} out")
    given = with_parts(given)
    other = other_text(text)
    from atat_zoo.evaluation.held_out_text import text_of
    from atat_zoo.evaluation.likelihood import evaluate_run
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, device, step)
    spec = with_options(model.experiment.evaluation, given, other.get("corpus"))
    seed = model.experiment.seed if seed is None else seed
    policy_value = None
    with Bars(silent=as_json) as bars:
        read = text_of(model, run, spec, packed=not policy, **other)
        evaluation = evaluate_run(model, run, spec, seed=seed, text=read, progress=bars.evaluating)
        if policy:
            from atat_zoo.evaluation.policy import policy_of_run

            told, of = partial(bars.working, "policy bound"), (parts["sampler"], parts["guidance"])
            policy_value = policy_of_run(
                model, run, read, *of, seed=seed, orders=orders or 1, batch_size=spec.batch_size, progress=told
            )
    if as_json:
        with_policy = {quantity_names.POLICY: policy_value.to_table()} if policy_value else {}
        print_json({"run": str(run), **evaluation.to_table(), **with_policy})
    else:
        click.echo("\n".join(lines(evaluation, spec.sequences) + (policy_lines(policy_value) if policy_value else [])))


def policy_lines(policy: PolicyValue) -> list[str]:
    """Return lines that state the sampler, its policy bound with errors, and its forward passes per text."""
    exact = policy.quantity != quantity_names.POLICY_BOUND
    how = "exact, as the order is deterministic" if exact else f"{number(policy.orders, 'order')}, seed {policy.seed}"
    by = policy.sampler["use"] + (f" ({of_sampler})" if (of_sampler := settings(policy.sampler)) else "")
    numbers = [
        (policy.quantity, with_error(policy.value, policy.stderr, ".1f")),
        ("  nats per token", with_error(policy.nats_per_token, policy.nats_per_token_stderr, ".4f")),
        ("  bits per byte", with_error(policy.bits_per_byte, policy.bits_per_byte_stderr, ".3f")),
        ("  forward passes", f"{policy.nfe:.1f} per text, at most {policy.max_nfe}"),
    ]
    if policy.orders > 1:
        numbers.append(("  with one order", f"{policy.nats_per_token_of_one_order:.4f} nats per token"))
    if bracket := policy.bracket:
        lower = with_error(bracket.nats_per_token, bracket.stderr, ".4f")
        numbers.append(("  lower limit", f"{lower} nats per token, {bracket.value:.1f}"))
        numbers.append(("  effective orders", f"{bracket.effective_orders:.1f} of {policy.orders}"))
    elif policy.orders > 1 and policy.orders % 2 == 0:
        why = "the estimate is negative, or its distance to the bound is smaller than that distance's standard error"
        numbers.append(("  lower limit", f"too uncertain: {why}; increase --orders or --sequences"))
    return [f"sampler {by}, guidance {policy.guidance['use']}, on the same text: {how}", *aligned(numbers)]


def lines(evaluation: Evaluation, limit: int = 0) -> list[str]:
    """Return an evaluation as lines to print; `limit` is the requested maximum number of sequences (0: all)."""
    some = evaluation.split == "all" and evaluation.sequences == limit
    where = f"{evaluation.corpus}, {evaluation.split}" if evaluation.corpus else evaluation.split
    where = evaluation.corpus if some else where
    spread = " evenly spread over it (--sequences 0 evaluates all)" if some else ""
    by = f"{number(evaluation.draws, 'mask')} each by {evaluation.method}, seed {evaluation.seed}"
    by = by if evaluation.draws else "exact likelihood"
    numbers: list[tuple[str, str]] = []
    for name, bound in evaluation.bounds.items():
        value = with_error(bound.value, bound.stderr, ".1f")
        if (
            name == quantity_names.NELBO
            and evaluation.perplexity_without_special is not None
            and evaluation.special_tokens
        ):
            value += f" ({evaluation.perplexity_without_special:.1f} without BOS and EOS)"
        numbers.append((quantity_names.title(name, bound.factorisation), value))
        numbers.append(("  bits per byte", with_error(bound.bits_per_byte, bound.bits_per_byte_stderr, ".3f")))
    if evaluation.bits_per_character is not None and evaluation.characters != evaluation.bytes:
        numbers.append(("bits per character", f"{evaluation.bits_per_character:.3f}"))
    if evaluation.perplexity_per_word is not None and math.isfinite(evaluation.perplexity_per_word):
        numbers.append((quantity_names.WORD_PERPLEXITY, f"{evaluation.perplexity_per_word:,.0f}"))
    if evaluation.unigram_perplexity:
        value = f"{evaluation.unigram_perplexity:.1f}"
        if evaluation.nelbo:
            less = 1 - evaluation.nelbo.value / evaluation.unigram_perplexity
            value += f"; the model's is {abs(less):.0%} {'lower' if less >= 0 else 'higher'}"
        numbers.append((quantity_names.UNIGRAM_PERPLEXITY, value))
    for title, metric in evaluation.metrics.items():
        numbers.append((quantity_names.words(title), metric.said))
    if prior := evaluation.ngram_prior:
        value = f"{with_error(prior.value, prior.stderr, '.1f')}; the model's is {prior.verdict}"
        name, bound = next(iter(evaluation.bounds.items()))
        numbers.append((f"{quantity_names.TABLE}, {quantity_names.title(name, bound.factorisation)}", value))
        numbers.append(("  reads", f"{prior.reads}, counted in {number(prior.counted, 'training sequence')}"))
    what = "text" if evaluation.form == "text" else "assistant messages, given the rest of the dialogue"
    text = [f"{where} {what}: {number(evaluation.sequences, 'sequence')}{spread}, {by}", f"  {_counted(evaluation)}"]
    text += aligned(numbers)
    if evaluation.ngram_prior:
        same = "tokens and masks" if evaluation.draws else "tokens"
        text.append(f"  baselines (unigram, {quantity_names.TABLE}): on the same {same}")
    errors = [bound.stderr for bound in evaluation.bounds.values()]
    if evaluation.sequences == 1 or not any(errors):
        text.append(f"  {errors_over(errors, 'sequence', evaluation.sequences)}")
    return text + [f"  {sentence}" for sentence in evaluation.on_importance()]


def _counted(evaluation: Evaluation) -> str:
    parts = [f"{evaluation.tokens:,} tokens"]
    if evaluation.special_tokens:
        parts[0] += f" ({evaluation.special_tokens:,} BOS or EOS)"
    if evaluation.padding:
        others = "padding" if evaluation.form == "text" else "prompt and padding"
        parts.append(f"{evaluation.padding:,} {others} positions not counted")
    weights = "EMA" if evaluation.ema else "final"
    return ", ".join([*parts, f"{evaluation.bytes:,} bytes, {evaluation.words:,} words; {weights} weights"])


def _figures_elsewhere(_: click.Context, __: click.Parameter, given: bool) -> None:
    if given:
        package = PACKAGES["importance-figures"]
        raise UserError(
            f"--figures, --with, --sampler and --out belong to `atat importance-figures`, a command of {package}: "
            f"{install_command(package)}"
        )


@click.command()
@options("run", "step", "split", "sequences", "mask_samples", "sequences_at_once", "mask_seed")
@click.option(
    "--bands", default=5, show_default=True, type=click.IntRange(1, 100), help="Number of token groups by frequency."
)
@click.option(
    *("--figures", "--with", "--sampler", "--out"),
    is_flag=True,
    hidden=True,
    is_eager=True,
    expose_value=False,
    callback=_figures_elsewhere,
)
@options("device", "json")
def importance(
    run: Path, step: int | str | None, bands: int, seed: int | None, device: str, as_json: bool, **given: Any
) -> None:
    """Correlate RUN's importance with the per-token loss on held-out text.

    The result is saved in the run's evaluations/, and `atat importance-figures RUN` plots it.
    """
    # Mistakes in these are reported before torch is imported.
    require_estimator(from_run(run), run, constant=True)
    from atat_zoo.evaluation.importance_quality import importance_of_run
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, device, step)
    spec, seed = with_options(model.experiment.evaluation, given), model.experiment.seed if seed is None else seed
    with Bars(silent=as_json) as bars:
        measured = importance_of_run(model, run, spec, seed=seed, bands=bands, progress=bars.evaluating)
    result = measured.to_table()
    if as_json:
        print_json({"run": str(run), **result})
        return
    total = result["tokens"]
    click.echo("\n".join([*_summary(result), ""]))
    if result["bands"]:
        columns = ["training count", "entries", "share of tokens", "mean nats", "ρ of importance", "95 % CI"]
        table([*columns, "ρ of frequency", "ρ of entropy"], [_of_band(band, total) for band in result["bands"]])
        click.echo("")
    columns = ["importance", "share of tokens", "mean importance", "mean rank of the loss", "mean nats"]
    rows = []
    for each in result["bins"]:
        means = [f"{each[name]:.3f}" for name in ("importance", "rank", "loss")]
        rows.append([f"{each['low']:.1f} to {each['high']:.1f}", f"{each['tokens'] / total:.1%}", *means])
    table(columns, rows)


def _summary(result: dict[str, Any]) -> list[str]:
    target = f" with target {result['target']}" if result["target"] else ""
    text = [
        f"importance of the estimator {result['estimator']}{target}, on {result['sequences']} sequences of "
        f"{result['split']} text, {result['tokens']:,} tokens, {result['draws']} masks each by {result['method']}",
        f"  mean {result['mean']:.3f}, standard deviation {result['deviation']:.3f}",
        f"  Spearman ρ with the loss of held-out tokens: {cell(result['importance_spearman'], '.3f')}"
        f" (95 % CI: {_interval(result)}; token frequency: {cell(result['frequency_spearman'], '.3f')}; "
        f"entropy of the prediction: {cell(result['entropy_spearman'], '.3f')})",
        "  with the rank of the loss in its sequence under one mask: "
        f"{cell(result['importance_spearman_in_mask'], '.3f')} (entropy of the prediction: "
        f"{cell(result['entropy_spearman_in_mask'], '.3f')})",
        f"  calibration error against the rank of the loss in its sequence: {result['calibration_error']:.3f}",
    ]
    if result["largest_spearman"] is not None:
        text.append(
            f"  the loss also depends on the mask: importance of the clean sequence has a ρ of at most "
            f"{result['largest_spearman']:.3f}, estimated from a second set of masks"
        )
    if result["importance_spearman"] is None:
        text.append("  the importance is constant, so it cannot rank the tokens")
    return text


def _interval(quality: dict[str, Any]) -> str:
    ends = quality["importance_interval"]
    return NONE if ends is None else " to ".join(f"{end:.3f}" for end in ends)


def _of_band(band: dict[str, Any], tokens: int) -> list[str]:
    counts = f"{band['least']:,}" if band["least"] == band["most"] else f"{band['least']:,} to {band['most']:,}"
    importance, *others = (cell(band[f"{name}_spearman"], ".3f") for name in ("importance", "frequency", "entropy"))
    size = [counts, f"{band['types']:,}", f"{band['tokens'] / tokens:.1%}", f"{band['loss']:.3f}"]
    return [*size, importance, _interval(band), *others]
