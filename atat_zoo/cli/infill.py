"""`atat infill`: fill the gaps of a text with a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import CHANGED, check_text, chosen, count, lines_of, options
from atat_zoo.cli.console import on_terminal, print_json, printable
from atat_zoo.errors import UserError
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atat_zoo.generation import Infilling


@click.command()
@options("run")
@click.argument("words", nargs=-1, metavar="[TEXT] [KEY=VALUE]...")
@click.option("--file", "path", help="Read texts from a file, one per line, instead of TEXT; - is standard input.")
@count("--number", 1, "Number of fills per text.", 1)
@options("step", "seed", "sampler", "batch_size", "device", "precision", "json")
def infill(
    run: Path,
    words: tuple[str, ...],
    path: str | None,
    number: int,
    step: int | None,
    seed: int,
    sampler: str | None,
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Fill the gaps of TEXT with the final model of RUN, as in "The [MASK:3] of the [MASK]".

    A gap is [MASK] for one token, [MASK:3] for three, [MASK:2-5] for two to five: the model then chooses the length
    that best fits the text after the gap. All text outside the gaps stays unchanged. `sampler.steps=32` and
    `guidance.use=…` change how gaps are filled.
    """
    from atat_zoo.generation.infilling import layouts_of
    from atat_zoo.generation.layout import SpaceAwareTokenizer

    # Every mistake is reported before torch is imported.
    if path is None and not words:
        raise UserError('there is no text; give one with gaps, as in "The [MASK:3] of the [MASK]", or --file')
    experiment, tokenizer = chosen(run, words if path is not None else words[1:], sampler, step)
    texts = lines_of(path) if path is not None else [check_text(words[0], "the text")]
    layouts_of(texts, SpaceAwareTokenizer(tokenizer), experiment.data.special, experiment.data.length)
    from atat_zoo.model import Model

    parts = {kind: experiment.parts[kind] for kind in CHANGED}
    infilling = Model.from_run(run, device, step).infill(texts, number, seed=seed, **parts, **given)
    if as_json:
        tables = {kind: unstructure(part) for kind, part in parts.items()}
        which = {} if step is None else {"step": step}
        print_json({"run": str(run), **which, **tables, "seed": seed, **table_of(texts, infilling)})
        return
    for j, (text, fills) in enumerate(zip(texts, infilling.filled, strict=True)):
        for k, filled in enumerate(fills):
            label = f"{j + 1}.{k + 1}" if len(texts) > 1 else str(k + 1)
            click.echo(("" if number == 1 else f"[{label}] ") + _shown(text, filled.fills))


def table_of(texts: Sequence[str], infilling: Infilling) -> dict[str, Any]:
    """Return the fills and their cost as a JSON object."""
    written = sum(sum(filled.lengths) for fills in infilling.filled for filled in fills)
    return {
        "texts": [
            {
                "given": text,
                "filled": [{"text": f.text, "fills": f.fills, "lengths": list(f.lengths), "nfe": f.nfe} for f in fills],
                "lengths": [{"lengths": list(n), "probability": p} for n, p in lengths.items()],
            }
            for text, fills, lengths in zip(texts, infilling.filled, infilling.lengths, strict=True)
        ],
        "max_nfe": infilling.max_nfe,
        "evaluations_for_lengths": infilling.evaluations,
        "tokens_written": written,
        "seconds": round(infilling.seconds, 3),
        "tokens_per_second": round(written / infilling.seconds, 1),
    }


def _shown(text: str, fills: Sequence[str]) -> str:
    """Return a filled text; on a terminal the fills are bold and printable."""
    from atat_zoo.generation.layout import parse

    if on_terminal():
        fills = [click.style(printable(fill), bold=True) for fill in fills]
    return "".join(piece + fill for piece, fill in zip(parse(text).pieces, [*fills, ""], strict=True))
