"""`atat sample` and `atat infill`: generate text with a finished run, or fill the gaps of a text."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import CHANGED, check_text, chosen, count, lines_of, options, output
from atat_zoo.cli.console import on_terminal, print_json, printable
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.layout import TextForm, parse
from atat_zoo.generation.samplers import changes
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.atomic import replacing
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from atat_zoo.diffusion.precision import Precision
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.writer import Infilling, Writer

STEP = 0.04  # seconds at least that a step is shown, so that it can be followed by eye
HIDDEN = "▁"


@click.command()
@options("run", "overrides", "step")
@count("-n --num-samples number", 1, "Number of texts.", 1)
@options("length", "seed", "sampler")
@click.option("--prompt", default="", help="Beginning of every text.")
@click.option("--suffix", default="", help="End of every text.")
@click.option("--chat", default="", help="A question, of which every text is an answer.")
@click.option("--windows", is_flag=True, help="Print windows of running text: what follows an EOS, too.")
@options("batch_size")
@output("--trace", help="Write the steps to this file, as lines of JSON.")
@click.option("--watch", is_flag=True, help="Show the texts on the terminal while they unmask.")
@options("device", "precision")
@click.option("--compile", is_flag=True, help="Compile the network first (takes a minute): for many texts.")
@options("json")
def sample(
    run: Path,
    overrides: tuple[str, ...],
    step: int | str | None,
    number: int,
    length: int | None,
    seed: int,
    sampler: str | None,
    prompt: str,
    suffix: str,
    chat: str,
    windows: bool,
    batch_size: int,
    trace: Path | None,
    watch: bool,
    device: str,
    precision: Precision,
    compile: bool,
    as_json: bool,
) -> None:
    """Generate text with the final model of RUN; `sampler.KEY=VALUE` and `guidance.use=…` change how.

    The first line of --trace has the initial tokens of every text. Each further line is a step: the rows and positions
    that were filled, with their tokens, or those that were masked again.
    """
    # Every mistake is reported before torch is imported.
    if watch and not on_terminal():
        raise UserError("--watch draws on a terminal, and standard output is none; leave --watch out, or write --trace")
    if watch and as_json:
        raise UserError("--watch and --json both want the terminal; choose one, or write --trace")
    experiment, tokenizer = chosen(run, overrides, sampler, step)
    if chat and experiment.data.format == "text" and tokenizer.template is None:
        raise UserError(
            f'--chat: {run} has learned running text; ask a run that was trained with data.format = "chat", or begin a '
            "text with --prompt"
        )
    request = TextForm.of(experiment, tokenizer).request(
        experiment.parts["sampler"],
        number=number,
        length=length,
        seed=seed,
        prompt=check_text(prompt, "--prompt"),
        suffix=check_text(suffix, "--suffix"),
        chat=check_text(chat, "--chat"),
        trusted=True,
        windows=windows,
        batch_size=batch_size,
    )
    header = _header(run, experiment, step, seed)
    with ExitStack() as stack:
        observers: list[Callable[[dict[str, Any]], None]] = []
        if trace:
            start = {"number": number, "mask": tokenizer.vocabulary_size, "start": request.row}
            observers.append(stack.enter_context(tracing(trace, header | start)))
        from atat_zoo.generation.model import Model

        model = Model.from_run(run, device, step, experiment=experiment, tokenizer=tokenizer)
        if watch:
            from rich.console import Console

            console = Console(markup=False, highlight=False)
            rows = [list(request.row) for _ in range(number)]
            observers.append(stack.enter_context(watching(rows, tokenizer, console)))

        def observe(record: dict[str, Any]) -> None:
            for observer in observers:
                observer(record)

        writer: Writer = experiment.parts["guidance"].guide(model.writer(precision, compile))
        generated = writer.generate(request, observe=observe if observers else None)
    if as_json:
        written = number * request.row.count(tokenizer.vocabulary_size)
        evaluations = {"nfe": generated.sample.nfe.tolist(), "max_nfe": generated.sample.max_nfe}
        print_json({**header, "texts": generated.texts, **evaluations, **_speed(written, generated.seconds)})
        return
    for index, text in enumerate(generated.texts):
        numbered = text if number == 1 else f"[{index + 1}] {text}\n"
        click.echo(printable(numbered) if on_terminal() else numbered)


def _header(run: Path, experiment: Experiment, step: int | str | None, seed: int) -> dict[str, Any]:
    """Return what JSON says of the model and of how it writes."""
    which = {} if step is None else {"step": RunFolder(run).step_of(step)}
    return {"run": str(run), **{kind: unstructure(experiment.parts[kind]) for kind in CHANGED}, "seed": seed, **which}


def picture(rows: Sequence[Sequence[int]], tokenizer: TokenizerModel, height: int) -> Text:
    """Return texts with dim masks, at most as many as the terminal has lines."""
    from rich.text import Text

    text = Text()
    for number, row in enumerate(rows[:height]):
        if len(rows) > 1:
            text.append(f"[{number + 1}] ", style="bold")
        for masked, tokens in itertools.groupby(row, lambda token: token == tokenizer.vocabulary_size):
            if masked:
                text.append(HIDDEN * len(list(tokens)), style="dim")
            else:
                text.append(printable(tokenizer.decode(tokens)))
        text.append("\n")
    return text


@contextmanager
def watching(rows: list[list[int]], tokenizer: TokenizerModel, console: Console) -> Iterator[Callable[..., None]]:
    """Show texts on the terminal while they unmask: yield an observer, which applies each step to their `rows`."""
    from rich.live import Live

    shown = time.monotonic() - STEP

    def observer(record: dict[str, Any]) -> None:
        nonlocal shown
        for row, position, token in changes(record, tokenizer.vocabulary_size):
            rows[row][position] = token
        time.sleep(max(0.0, shown + STEP - time.monotonic()))
        shown = time.monotonic()
        live.refresh()

    def current() -> Text:
        return picture(rows, tokenizer, console.height)

    live = Live(console=console, get_renderable=current, auto_refresh=False, transient=True)
    try:
        live.start(refresh=True)
        yield observer
    finally:  # also on an interrupt, to restore the cursor
        live.stop()


@contextmanager
def tracing(path: Path, header: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield an observer that writes a header and then each step as a line of JSON; the file is complete or absent."""
    if path.is_dir():
        raise UserError(f"--trace {path} is a folder; name a file in it")
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        yield lambda record: print(json.dumps(record), file=file)


@click.command()
@options("run")
@click.argument("words", nargs=-1, metavar="[TEXT] [KEY=VALUE]...")
@click.option("--file", "path", help="Read texts from a file, one per line, instead of TEXT; - is standard input.")
@count("-n --num-samples number", 1, "Number of fills per text.", 1)
@options("step", "seed", "sampler", "batch_size", "device", "precision", "json")
def infill(
    run: Path,
    words: tuple[str, ...],
    path: str | None,
    number: int,
    step: int | str | None,
    seed: int,
    sampler: str | None,
    batch_size: int,
    device: str,
    precision: Precision,
    as_json: bool,
) -> None:
    """Fill the gaps of TEXT with the final model of RUN, as in "The [MASK:3] of the [MASK]".

    A gap is [MASK] for one token, [MASK:3] for three, [MASK:2-5] for two to five: the model then chooses the length
    that best fits the text after the gap. All text outside the gaps stays unchanged. `sampler.KEY=VALUE` and
    `guidance.use=…` change how gaps are filled.
    """
    # Every mistake is reported before torch is imported.
    if path is None and not words:
        raise UserError('there is no text; give one with gaps, as in "The [MASK:3] of the [MASK]", or --file')
    experiment, tokenizer = chosen(run, words if path is not None else words[1:], sampler, step)
    texts = lines_of(path) if path is not None else [check_text(words[0], "the text")]
    layouts, parts = TextForm.of(experiment, tokenizer).layouts(texts), experiment.parts
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, device, step, experiment=experiment, tokenizer=tokenizer)
    weigher = model.writer(precision)
    writer: Writer = parts["guidance"].guide(weigher)
    infilling = writer.infill(
        parts["sampler"], layouts, number=number, seed=seed, batch_size=batch_size, weigher=weigher
    )
    if as_json:
        print_json({**_header(run, experiment, step, seed), **table_of(texts, infilling)})
        return
    for j, (text, fills) in enumerate(zip(texts, infilling.filled, strict=True)):
        for k, filled in enumerate(fills):
            label = f"{j + 1}.{k + 1}" if len(texts) > 1 else str(k + 1)
            click.echo(("" if number == 1 else f"[{label}] ") + _shown(text, filled.fills))


def table_of(texts: Sequence[str], infilling: Infilling) -> dict[str, Any]:
    """Return the fills and their cost as a JSON object."""
    written = sum(sum(filled.lengths) for fills in infilling.filled for filled in fills)
    rows = [
        {
            "given": text,
            "filled": [{"text": f.text, "fills": f.fills, "lengths": list(f.lengths), "nfe": f.nfe} for f in fills],
            "lengths": [{"lengths": list(n), "probability": p} for n, p in lengths.items()],
        }
        for text, fills, lengths in zip(texts, infilling.filled, infilling.lengths, strict=True)
    ]
    evaluations = {"max_nfe": infilling.max_nfe, "evaluations_for_lengths": infilling.evaluations}
    return {"texts": rows, **evaluations, **_speed(written, infilling.seconds)}


def _speed(written: int, seconds: float) -> dict[str, Any]:
    per_second = round(written / seconds, 1)
    return {"tokens_written": written, "seconds": round(seconds, 3), "tokens_per_second": per_second}


def _shown(text: str, fills: Sequence[str]) -> str:
    """Return a filled text; on a terminal the fills are bold and printable."""
    if on_terminal():
        fills = [click.style(printable(fill), bold=True) for fill in fills]
    return "".join(piece + fill for piece, fill in zip(parse(text).pieces, [*fills, ""], strict=True))
