"""`atat eval`: the bounds of a finished run on held-out text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import HELD_OUT, corpus, options, with_bound, with_options
from atat_zoo.cli.console import Bars, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo.evaluation.perplexity import Evaluation


@click.command("eval")
@options("run", "step")
@click.option("--corpus", "text", help="Other text: files by path or pattern, a corpus's name, or a table {use = …}.")
@options(*HELD_OUT, "device", "json")
def evaluate(
    run: Path, step: int | None, text: str | None, seed: int | None, device: str, as_json: bool, **given: Any
) -> None:
    """Evaluate the final model of RUN; the result is also saved in its evaluations/.

    --corpus evaluates zero-shot on other text, in the model's own tokens.
    """
    # Mistakes in these are reported before torch is imported.
    given = with_bound(given)
    other, name, everything = corpus(text) if text else (None, "", False)
    from atat_zoo.evaluation import evaluate_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    with Bars(silent=as_json) as bars:
        evaluation = evaluate_run(
            model,
            run,
            with_options(model.experiment.evaluation, given),
            seed=model.experiment.seed if seed is None else seed,
            corpus=other,
            corpus_name=name,
            all_of_corpus=everything,
            progress=bars.evaluating,
        )
    if as_json:
        print_json({"run": str(run), **evaluation.to_table()})
    else:
        click.echo("\n".join(lines(evaluation)))


def lines(evaluation: Evaluation) -> list[str]:
    """Return an evaluation as readable lines."""
    from atat_zoo.evaluation import naming
    from atat_zoo.evaluation.perplexity import number

    where = f"{evaluation.corpus}, {evaluation.split}" if evaluation.corpus else evaluation.split
    by = (
        f"{number(evaluation.draws, 'draw')} each by {evaluation.method}, seed {evaluation.seed}"
        if evaluation.draws
        else "their exact likelihood"
    )
    text = [f"{where} text: {number(evaluation.sequences, 'sequence')}, {by}"]
    text += [f"  counted: {_counted(evaluation)}"]
    numbers: list[tuple[str, str]] = []
    for name, bound in evaluation.bounds.items():
        value = f"{bound.value:.1f} ± {bound.stderr:.1f}"
        if name == naming.NELBO and evaluation.perplexity_without_special is not None and evaluation.special_tokens:
            value += f" ({evaluation.perplexity_without_special:.1f} without BOS and EOS)"
        numbers.append((naming.title(name), value))
        numbers.append(("  bits per byte", f"{bound.bits_per_byte:.3f} ± {bound.bits_per_byte_stderr:.3f}"))
    if evaluation.bits_per_character is not None and evaluation.characters != evaluation.bytes:
        numbers.append(("bits per character", f"{evaluation.bits_per_character:.3f}"))
    if evaluation.perplexity_per_word is not None and math.isfinite(evaluation.perplexity_per_word):
        numbers.append((naming.WORD_PERPLEXITY, f"{evaluation.perplexity_per_word:,.0f}"))
    if evaluation.unigram_perplexity:
        value = f"{evaluation.unigram_perplexity:.1f} on the same tokens"
        if evaluation.nelbo:
            less = 1 - evaluation.nelbo.value / evaluation.unigram_perplexity
            value += f"; the model's is {abs(less):.0%} {'lower' if less >= 0 else 'higher'}"
        numbers.append((naming.UNIGRAM_PERPLEXITY, value))
    if beside := evaluation.count_table:
        same = "tokens and masks" if evaluation.draws else "tokens"
        value = f"{beside.value:.1f} ± {beside.stderr:.1f} on the same {same}; the model's is {beside.verdict}"
        numbers.append((f"{naming.TABLE} {naming.title(next(iter(evaluation.bounds)))}", value))
        numbers.append(("  counted", f"{beside.reads}, in {number(beside.counted, 'training sequence')}"))
    width = max(len(name) for name, _ in numbers)
    text += [f"  {name.ljust(width)}  {value}" for name, value in numbers]
    rho, alone = evaluation.importance_spearman, evaluation.frequency_spearman
    if rho is not None:
        frequency = "" if alone is None else f" (frequency alone: {alone:.3f})"
        text.append(f"  importance against per-token loss, Spearman ρ: {rho:.3f}{frequency}")
    return text


def _counted(evaluation: Evaluation) -> str:
    parts = [f"{evaluation.tokens:,} tokens"]
    if evaluation.special_tokens:
        parts[0] += f", {evaluation.special_tokens:,} of them BOS or EOS"
    if evaluation.padding:
        parts.append(f"not {evaluation.padding:,} positions of padding")
    weights = "EMA" if evaluation.ema else "final"
    return f"{'; '.join(parts)}; {evaluation.bytes:,} bytes, {evaluation.words:,} words; {weights} weights"
