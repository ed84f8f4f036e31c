"""`atat sample` and `atat infill`: generate text with a run, or fill the gaps of a text."""

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
from atat_zoo.cli.console import headed, on_terminal, print_json, printable
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.layout import TextForm, parse
from atat_zoo.generation.samplers import changes
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.atomic_files import replacing
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from atat_zoo.diffusion.precision import Precision
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.text_generator import Infilling, TextGenerator

STEP = 0.04  # minimum number of seconds for which --watch shows a decoding step
HIDDEN = "▁"


@click.command()
@options("run", "overrides", "step")
@count("-n --num-samples number", 1, "Number of texts to generate.", 1)
@options("length", "seed", "sampler")
@click.option("--prompt", default="", help="Prompt: the beginning of every text.")
@click.option("--suffix", default="", help="Suffix: the end of every text.")
@click.option("--chat", default="", help="User message to answer, for instruction-tuned models.")
@click.option("--windows", is_flag=True, help="Also print the text after an EOS token.")
@options("batch_size")
@output("--trace", help="Write every decoding step to this file, as JSON lines.")
@click.option("--watch", is_flag=True, help="Show the texts in the terminal as they unmask.")
@options("device", "precision")
@click.option("--compile", is_flag=True, help="Compile the network first (takes a minute, but speeds up many texts).")
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
    """Generate text with RUN. `sampler.KEY=VALUE`, such as `sampler.token_sampling.temperature=0.5`, changes the
    sampler, and `guidance.use=…` the guidance.

    The first line of the --trace file contains the initial tokens of every text. Each further line is a decoding step:
    the texts and positions that were filled, with their tokens, or those that were masked again.
    """
    # Every mistake is reported before torch is imported.
    if watch and not on_terminal():
        raise UserError("--watch needs a terminal as standard output; leave it out, or pass --trace FILE")
    if watch and as_json:
        raise UserError("--watch and --json cannot be combined; leave one out, or pass --trace FILE")
    experiment, tokenizer = chosen(run, overrides, sampler, step)
    if chat and experiment.data.format == "text" and tokenizer.template is None:
        raise UserError(
            f'--chat needs a chat model, and {run} was not trained on dialogues; pass a run with data.format = "chat", '
            "or use --prompt"
        )
    request = TextForm.from_experiment(experiment, tokenizer).request(
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

        text_generator: TextGenerator = experiment.parts["guidance"].guide(model.text_generator(precision, compile))
        generated = text_generator.generate(request, observe=observe if observers else None)
    if as_json:
        written = number * request.row.count(tokenizer.vocabulary_size)
        evaluations = {"nfe": generated.sample.nfe.tolist(), "max_nfe": generated.sample.max_nfe}
        print_json({**header, "texts": generated.texts, **evaluations, **_speed(written, generated.seconds)})
        return
    for index, text in enumerate(generated.texts, 1):
        text = printable(text) if on_terminal() else text
        if number == 1:
            click.echo(text)
        else:
            headed(f"sample {index} of {number}", text)


def _header(run: Path, experiment: Experiment, step: int | str | None, seed: int) -> dict[str, Any]:
    """Return the header of the JSON output and of a trace: the run, sampler, guidance and seed."""
    which = {} if step is None else {"step": RunFolder(run).step_of(step)}
    return {"run": str(run), **{kind: unstructure(experiment.parts[kind]) for kind in CHANGED}, "seed": seed, **which}


def picture(rows: Sequence[Sequence[int]], tokenizer: TokenizerModel, height: int) -> Text:
    """Return a rich `Text` of the first `height` rows of token ids, in which each mask is a dimmed `HIDDEN`."""
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
    """Show texts in the terminal as they unmask; yield an observer that applies each decoding step to `rows`."""
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
    """Yield an observer that writes decoding steps as JSON lines after `header`; on an error, `path` is unchanged."""
    if path.is_dir():
        raise UserError(f"--trace {path} is a folder; pass a file")
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        yield lambda record: print(json.dumps(record), file=file)


@click.command()
@options("run")
@click.argument("words", nargs=-1, metavar="[TEXT] [KEY=VALUE]...")
@click.option(
    "--file", "path", help="Read texts from this file, one per line, instead of TEXT; - reads standard input."
)
@count("-n --num-samples number", 1, "Number of infillings per text.", 1)
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
    """Fill the gaps of TEXT with RUN, as in "The [MASK:3] of the [MASK]".

    A gap is [MASK] for one token, [MASK:3] for three, or [MASK:2-5] for two to five; the length is then sampled in
    proportion to the likelihood of the text after the gap. The text outside the gaps does not change.
    `sampler.KEY=VALUE` and `guidance.use=…` change the sampler and the guidance.
    """
    # Every mistake is reported before torch is imported.
    if path is None and not words:
        raise UserError('TEXT is missing; pass one with gaps, such as "The [MASK:3] of the [MASK]", or --file FILE')
    experiment, tokenizer = chosen(run, words if path is not None else words[1:], sampler, step)
    texts = lines_of(path) if path is not None else [check_text(words[0], "the text")]
    layouts, parts = TextForm.from_experiment(experiment, tokenizer).layouts(texts), experiment.parts
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, device, step, experiment=experiment, tokenizer=tokenizer)
    weigher = model.text_generator(precision)
    text_generator: TextGenerator = parts["guidance"].guide(weigher)
    infilling = text_generator.infill(
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
    """Return a JSON object with the fills of each text, the probabilities of gap lengths, the NFE and the speed."""
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
    """Return a filled text; on a terminal, its fills are bold and contain only printable characters."""
    if on_terminal():
        fills = [click.style(printable(fill), bold=True) for fill in fills]
    return "".join(piece + fill for piece, fill in zip(parse(text).pieces, [*fills, ""], strict=True))
