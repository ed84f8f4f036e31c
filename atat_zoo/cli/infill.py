"""`atat infill`: let a finished run fill the gaps of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.choosing import CHANGED, check_text, chosen, lines_of, precision_option
from atat_zoo.cli.console import json_option, on_terminal, print_json, printable
from atat_zoo.errors import UserError
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atat_zoo.diffusion.precision import Precision
    from atat_zoo.generation import Infilling


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("words", nargs=-1, metavar="[TEXT] [KEY=VALUE]...")
@click.option("--file", "path", help="Texts from a file, one a line, instead of TEXT; - is standard input.")
@click.option("--number", default=1, show_default=True, type=click.IntRange(1), help="Fills of each text.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The same seed, the same fills.")
@click.option("--sampler", help="A sampler, or a table like {use = 'ancestral', steps = 32}; the run's when absent.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Texts at once.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@precision_option
@json_option
def infill(
    run: Path,
    words: tuple[str, ...],
    path: str | None,
    number: int,
    seed: int,
    sampler: str | None,
    batch_size: int,
    device: str,
    precision: Precision,
    as_json: bool,
) -> None:
    """Let the final model of RUN fill the gaps of TEXT, as in "The [MASK:3] of the [MASK]".

    A gap is [MASK] for one token, [MASK:3] for three, [MASK:2-5] for two to five: the model then chooses how many,
    by how well the text behind the gap goes with each. All text outside the gaps stays as it is. `sampler.steps=32`
    and `guidance.use=…` change how it is filled.
    """
    from atat_zoo.generation.infilling import layouts_of
    from atat_zoo.generation.layout import Words

    # Every mistake is reported before torch is imported.
    if path is None and not words:
        raise UserError('there is no text; give one with gaps, as in "The [MASK:3] of the [MASK]", or --file')
    experiment, tokenizer = chosen(run, words if path is not None else words[1:], sampler)
    texts = lines_of(path) if path is not None else [check_text(words[0], "the text")]
    layouts_of(texts, Words(tokenizer), experiment.data.special, experiment.data.length)
    from atat_zoo.model import Model

    made = Model.from_run(run, device).infill(
        texts,
        number,
        sampler=experiment.parts["sampler"],
        guidance=experiment.parts["guidance"],
        precision=precision,
        seed=seed,
        batch_size=batch_size,
    )
    if as_json:
        parts = {kind: unstructure(experiment.parts[kind]) for kind in CHANGED}
        print_json({"run": str(run), **parts, "seed": seed, **table_of(texts, made)})
        return
    for j, (text, fills) in enumerate(zip(texts, made.filled, strict=True)):
        for k, filled in enumerate(fills):
            label = f"{j + 1}.{k + 1}" if len(texts) > 1 else str(k + 1)
            click.echo(("" if number == 1 else f"[{label}] ") + _shown(text, filled.fills))


def table_of(texts: Sequence[str], made: Infilling) -> dict[str, Any]:
    """Return what was filled, and what it cost, as a JSON object."""
    written = sum(sum(filled.lengths) for fills in made.filled for filled in fills)
    return {
        "texts": [
            {
                "given": text,
                "filled": [{"text": f.text, "fills": f.fills, "lengths": list(f.lengths), "nfe": f.nfe} for f in fills],
                "lengths": [{"lengths": list(n), "probability": p} for n, p in lengths.items()],
            }
            for text, fills, lengths in zip(texts, made.filled, made.lengths, strict=True)
        ],
        "max_nfe": made.max_nfe,
        "evaluations_for_lengths": made.evaluations,
        "tokens_written": written,
        "seconds": round(made.seconds, 3),
        "tokens_per_second": round(written / made.seconds, 1),
    }


def _shown(text: str, fills: Sequence[str]) -> str:
    """Return a filled text, the fills bold and printable on a terminal."""
    from atat_zoo.generation.layout import parse

    pieces = parse(text).pieces
    if not on_terminal():
        return "".join(piece + fill for piece, fill in zip(pieces, [*fills, ""], strict=True))
    bold = [click.style(printable(fill), bold=True) for fill in fills]
    return "".join(piece + fill for piece, fill in zip(pieces, [*bold, ""], strict=True))
