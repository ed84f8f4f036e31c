"""`atat eval`: the bounds of a finished run on held-out text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.bars import Bars
from atat_zoo.cli.console import json_option, print_json
from atat_zoo.cli.evaluating import bound_of, evaluation_options, with_options
from atat_zoo.cli.parts import corpus

if TYPE_CHECKING:
    from atat_zoo.evaluation import Evaluation


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--corpus", "text", help="Other text: files by path or pattern, a corpus's name, or a table {use = …}.")
@evaluation_options()
@json_option
def evaluate(run: Path, text: str | None, seed: int | None, device: str, as_json: bool, **options: Any) -> None:
    """Evaluate the final model of RUN; the result goes to its evaluations/ too.

    With --corpus the text is another one than the model's own: zero-shot, in the model's tokens.
    """
    # A mistake in these is said before torch is imported.
    options = bound_of(options)
    other, name, everything = corpus(text) if text else (None, "", False)
    from atat_zoo.evaluation import evaluate_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device)
    with Bars(silent=as_json) as bars:
        evaluation = evaluate_run(
            model,
            run,
            with_options(model.experiment.evaluation, options),
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


def lines(found: Evaluation) -> list[str]:
    """Return an evaluation as lines to read."""
    from atat_zoo.evaluation import naming

    where = f"{found.corpus}, {found.split}" if found.corpus else found.split
    by = (
        f"{_number(found.draws, 'draw')} each by {found.method}, seed {found.seed}"
        if found.draws
        else "their exact likelihood"
    )
    text = [f"{where} text: {_number(found.sequences, 'sequence')}, {by}"]
    text += [f"  counted: {_counted(found)}"]
    numbers: list[tuple[str, str]] = []
    for name, bound in found.bounds.items():
        value = f"{bound.value:.1f} ± {bound.stderr:.1f}"
        if name == naming.NELBO and found.perplexity_without_special is not None and found.special_tokens:
            value += f" ({found.perplexity_without_special:.1f} without BOS and EOS)"
        numbers.append((naming.title(name), value))
        numbers.append(("  bits per byte", f"{bound.bits_per_byte:.3f} ± {bound.bits_per_byte_stderr:.3f}"))
    if found.bits_per_character is not None and found.characters != found.bytes:
        numbers.append(("bits per character", f"{found.bits_per_character:.3f}"))
    if found.perplexity_per_word is not None and math.isfinite(found.perplexity_per_word):
        numbers.append((naming.WORD_PERPLEXITY, f"{found.perplexity_per_word:,.0f}"))
    if found.unigram_perplexity:
        value = f"{found.unigram_perplexity:.1f} on the same tokens"
        if found.nelbo:
            less = 1 - found.nelbo.value / found.unigram_perplexity
            value += f"; the model's is {abs(less):.0%} {'lower' if less >= 0 else 'higher'}"
        numbers.append((naming.UNIGRAM_PERPLEXITY, value))
    width = max(len(name) for name, _ in numbers)
    text += [f"  {name.ljust(width)}  {value}" for name, value in numbers]
    if found.importance_spearman is not None:
        text.append(
            f"  importance against per-token loss, Spearman ρ: {found.importance_spearman:.3f}"
            + ("" if found.frequency_spearman is None else f" (frequency alone: {found.frequency_spearman:.3f})")
        )
    return text


def _counted(found: Evaluation) -> str:
    parts = [f"{found.tokens:,} tokens"]
    if found.special_tokens:
        parts[0] += f", {found.special_tokens:,} of them BOS or EOS"
    if found.padding:
        parts.append(f"not {found.padding:,} places of padding")
    return (
        f"{'; '.join(parts)}; {found.bytes:,} bytes, {found.words:,} words; {'EMA' if found.ema else 'final'} weights"
    )


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
