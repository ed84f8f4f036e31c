"""`atat eval`: the bounds of a finished run on held-out text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.choosing import corpus, named
from atat_zoo.cli.console import Bars, json_option, print_json
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from atat_zoo.evaluation import Evaluation


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["validation", "test"]), help="Held-out; the experiment's when absent.")
@click.option("--corpus", "text", help="Other text: files by path or pattern, a corpus's name, or a table {use = …}.")
@click.option("--bound", help="exact_k, continuous_t, or a table like {use = 'discrete_t', steps = 8}.")
@click.option("--sequences", type=click.IntRange(0), help="Sequences at most; 0 takes all.")
@click.option("--draws", type=click.IntRange(1), help="Masks drawn for every sequence.")
@click.option("--batch-size", type=click.IntRange(1), help="Sequences at once.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the masks; the experiment's when absent.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@json_option
def evaluate(
    run: Path,
    split: str | None,
    text: str | None,
    bound: str | None,
    sequences: int | None,
    draws: int | None,
    batch_size: int | None,
    seed: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Evaluate the final model of RUN; the result goes to its evaluations/ too.

    With --corpus the text is another one than the model's own: zero-shot, in the model's tokens.
    """
    # A mistake in these is said before torch is imported.
    method = named("bound", bound) if bound else None
    other, name, whole = corpus(text) if text else (None, "", False)
    from atat_zoo.evaluation import evaluate_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device)
    given = {"split": split, "sequences": sequences, "draws": draws, "batch_size": batch_size, "bound": method}
    own = unstructure(model.experiment.evaluation)
    spec = EvaluationSpec(**own | {key: value for key, value in given.items() if value is not None})
    with Bars(silent=as_json) as bars:
        found = evaluate_run(
            model,
            run,
            spec,
            seed=model.experiment.seed if seed is None else seed,
            corpus=other,
            corpus_name=name,
            whole_corpus=whole,
            progress=bars.evaluating,
        )
    if as_json:
        print_json({"run": str(run), **found.to_table()})
    else:
        click.echo("\n".join(lines(found)))


def lines(found: Evaluation) -> list[str]:
    """Return an evaluation as lines to read."""
    from atat_zoo.evaluation import naming

    where = f"{found.corpus}, {found.split}" if found.corpus else found.split
    by = (
        f"{_number(found.draws, 'draw')} each by {found.method}, seed {found.seed}"
        if found.draws
        else "their exact likelihood"
    )
    said = [f"{where} text: {_number(found.sequences, 'sequence')}, {by}"]
    said += [f"  counted: {_counted(found)}"]
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
        text = f"{found.unigram_perplexity:.1f} on the same tokens"
        if found.nelbo:
            less = 1 - found.nelbo.value / found.unigram_perplexity
            text += f"; the model's is {abs(less):.0%} {'lower' if less >= 0 else 'higher'}"
        numbers.append((naming.UNIGRAM_PERPLEXITY, text))
    width = max(len(name) for name, _ in numbers)
    said += [f"  {name.ljust(width)}  {value}" for name, value in numbers]
    if found.importance_spearman is not None:
        said.append(
            f"  importance against per-token loss, Spearman ρ: {found.importance_spearman:.3f}"
            + ("" if found.frequency_spearman is None else f" (frequency alone: {found.frequency_spearman:.3f})")
        )
    return said


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
