"""`atat sample`: let a finished run write."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.choosing import CHANGED, check_text, chosen, precision_option
from atat_zoo.cli.console import echo_text, json_option, print_json
from atat_zoo.errors import UserError
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.diffusion.precision import Precision


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--number", default=1, show_default=True, type=click.IntRange(1), help="How many texts.")
@click.option("--length", type=click.IntRange(1), help="Tokens in a text; as in training when absent.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The same seed, the same text.")
@click.option("--sampler", help="A sampler, or a table like {use = 'ancestral', steps = 32}; the run's when absent.")
@click.option("--prompt", default="", help="Text that it begins with.")
@click.option("--suffix", default="", help="Text that it ends with.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Texts at once.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write the steps to this file, as lines of JSON.")
@click.option("--watch", is_flag=True, help="Show the texts on the terminal while they unmask.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@precision_option
@click.option("--compile", is_flag=True, help="Compile the network first, which takes a minute: for many texts.")
@json_option
def sample(
    run: Path,
    overrides: tuple[str, ...],
    number: int,
    length: int | None,
    seed: int,
    sampler: str | None,
    prompt: str,
    suffix: str,
    batch_size: int,
    trace: Path | None,
    watch: bool,
    device: str,
    precision: Precision,
    compile: bool,
    as_json: bool,
) -> None:
    """Let the final model of RUN write; `sampler.steps=32` and `guidance.use=…` change how.

    The first line of --trace says what every text began as; each other line is a step: the rows and positions that
    were filled and the tokens, or those that were hidden again.
    """
    from atat_zoo.cli.watching import Watch, terminal, tracing
    from atat_zoo.generation.layout import Words, prompted

    # Every mistake is reported before torch is imported.
    console = terminal() if watch else None
    if watch and as_json:
        raise UserError("--watch and --json both want the terminal; choose one, or write --trace")
    experiment, tokenizer = chosen(run, overrides, sampler)
    length = length or experiment.data.length
    prompt, suffix = check_text(prompt, "--prompt"), check_text(suffix, "--suffix")
    data = experiment.data
    row, _ = prompted(Words(tokenizer), data.special, length, prompt, suffix, seen=data.length)
    parts = {kind: unstructure(experiment.parts[kind]) for kind in CHANGED}
    observers: list[Callable[[dict[str, Any]], None]] = []
    with ExitStack() as open_things:
        if trace:
            header = {"run": str(run), **parts, "seed": seed, "number": number}
            header |= {"mask": tokenizer.vocabulary_size, "start": row}
            observers.append(open_things.enter_context(tracing(trace, header)))
        from atat_zoo.model import Model

        model = Model.from_run(run, device)
        if console:
            observers.append(open_things.enter_context(Watch(row, number, tokenizer, console)))

        def tell(record: dict[str, Any]) -> None:
            for observer in observers:
                observer(record)

        made = model.sample(
            number,
            sampler=experiment.parts["sampler"],
            guidance=experiment.parts["guidance"],
            precision=precision,
            compile=compile,
            length=length,
            seed=seed,
            prompt=prompt,
            suffix=suffix,
            batch_size=batch_size,
            observe=tell if observers else None,
        )
    if as_json:
        written = number * row.count(tokenizer.vocabulary_size)
        print_json(
            {
                "run": str(run),
                **parts,
                "seed": seed,
                "texts": made.texts,
                "nfe": made.sample.nfe.tolist(),
                "max_nfe": made.sample.max_nfe,
                "tokens_written": written,
                "seconds": round(made.seconds, 3),
                "tokens_per_second": round(written / made.seconds, 1),
            }
        )
        return
    for index, text in enumerate(made.texts):
        echo_text(text if number == 1 else f"[{index + 1}] {text}\n")
