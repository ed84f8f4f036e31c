"""`atat sample`: generate text with a finished run."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import CHANGED, check_text, chosen, count, options
from atat_zoo.cli.console import echo_text, on_terminal, print_json, printable
from atat_zoo.errors import UserError
from atat_zoo.registry.spec import unstructure
from atat_zoo.run.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from atat_zoo.tokenizers import TokenizerModel

# Minimum display time of a step, in seconds, so that it can be followed by eye.
STEP = 0.04
HIDDEN = "▁"


@click.command()
@options("run", "overrides", "step")
@count("--number", 1, "Number of texts.", 1)
@options("length", "seed", "sampler")
@click.option("--prompt", default="", help="Beginning of every text.")
@click.option("--suffix", default="", help="End of every text.")
@options("batch_size")
@click.option("--trace", type=click.Path(path_type=Path), help="Write the steps to this file, as lines of JSON.")
@click.option("--watch", is_flag=True, help="Show the texts on the terminal while they unmask.")
@options("device", "precision")
@click.option("--compile", is_flag=True, help="Compile the network first (takes a minute): for many texts.")
@options("json")
def sample(
    run: Path,
    overrides: tuple[str, ...],
    step: int | None,
    number: int,
    length: int | None,
    seed: int,
    sampler: str | None,
    prompt: str,
    suffix: str,
    trace: Path | None,
    watch: bool,
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Generate text with the final model of RUN; `sampler.steps=32` and `guidance.use=…` change how.

    The first line of --trace has the initial tokens of every text. Each further line is a step: the rows and positions
    that were filled, with their tokens, or those that were masked again.
    """
    from atat_zoo.generation.layout import SpaceAwareTokenizer, prompted, refuse_length

    # Every mistake is reported before torch is imported.
    console = terminal() if watch else None
    if watch and as_json:
        raise UserError("--watch and --json both want the terminal; choose one, or write --trace")
    experiment, tokenizer = chosen(run, overrides, sampler, step)
    data = experiment.data
    length = length or data.length
    prompt, suffix = check_text(prompt, "--prompt"), check_text(suffix, "--suffix")
    refuse_length(experiment.parts["sampler"], number, length, data.length)
    row, _ = prompted(SpaceAwareTokenizer(tokenizer), data.special, length, prompt, suffix, seen=data.length)
    parts = {kind: experiment.parts[kind] for kind in CHANGED}
    header = {"run": str(run), **{kind: unstructure(part) for kind, part in parts.items()}, "seed": seed}
    header |= {} if step is None else {"step": step}
    observers: list[Callable[[dict[str, Any]], None]] = []
    with ExitStack() as stack:
        if trace:
            start = {"number": number, "mask": tokenizer.vocabulary_size, "start": row}
            observers.append(stack.enter_context(tracing(trace, header | start)))
        from atat_zoo.model import Model

        model = Model.from_run(run, device, step)
        if console:
            observers.append(stack.enter_context(Watch(row, number, tokenizer, console)))

        given |= {**parts, "length": length, "seed": seed, "prompt": prompt, "suffix": suffix}
        observe = (lambda record: [observer(record) for observer in observers]) if observers else None
        generated = model.sample(number, observe=observe, **given)
    if as_json:
        written = number * row.count(tokenizer.vocabulary_size)
        costs = {
            "nfe": generated.sample.nfe.tolist(),
            "max_nfe": generated.sample.max_nfe,
            "tokens_written": written,
            "seconds": round(generated.seconds, 3),
            "tokens_per_second": round(written / generated.seconds, 1),
        }
        print_json({**header, "texts": generated.texts, **costs})
        return
    for index, text in enumerate(generated.texts):
        echo_text(text if number == 1 else f"[{index + 1}] {text}\n")


class Watch:
    """Shows texts on the terminal while they unmask; an observer of `Sampler.sample`."""

    def __init__(self, row: Sequence[int], number: int, tokenizer: TokenizerModel, console: Console) -> None:
        """Begin with `number` copies of a row of given tokens and masks."""
        self.rows = [list(row) for _ in range(number)]
        self.tokenizer = tokenizer
        self.mask = tokenizer.vocabulary_size
        self.console = console
        self.live: Any = None
        self.next = 0.0

    def __enter__(self) -> Watch:
        """Start drawing."""
        from rich.live import Live

        self.live = Live(console=self.console, get_renderable=self.picture, auto_refresh=False, transient=True)
        try:
            self.live.start(refresh=True)
        except BaseException:  # also on an interrupt, to restore the cursor
            self.live.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the view; the texts are printed instead."""
        self.live.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        """Apply a step and show it."""
        if masked := record.get("hidden"):
            self._put(masked, [self.mask] * len(masked["rows"]))
        if "tokens" in record:
            self._put(record, record["tokens"])
        if self.live is None:
            return
        time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = time.monotonic() + STEP
        self.live.refresh()

    def picture(self) -> Text:
        """Return the current texts with dim masks, at most as many as the terminal has lines."""
        from rich.text import Text

        text = Text()
        for number, row in enumerate(self.rows[: self.console.height]):
            if len(self.rows) > 1:
                text.append(f"[{number + 1}] ", style="bold")
            for masked, tokens in itertools.groupby(row, lambda token: token == self.mask):
                if masked:
                    text.append(HIDDEN * len(list(tokens)), style="dim")
                else:
                    text.append(printable(self.tokenizer.decode(tokens)))
            text.append("\n")
        return text

    def _put(self, where: dict[str, Any], tokens: Sequence[int]) -> None:
        for row, position, token in zip(where["rows"], where["positions"], tokens, strict=True):
            self.rows[row][position] = token


def terminal() -> Console:
    """Return the terminal for `--watch`.

    Raises:
        UserError: when standard output is no terminal.
    """
    if not on_terminal():
        raise UserError("--watch draws on a terminal, and standard output is none; leave --watch out, or write --trace")
    from rich.console import Console

    return Console(markup=False, highlight=False)


@contextmanager
def tracing(path: Path, header: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield an observer that writes a header and then each step as a line of JSON; the file is complete or absent.

    Raises:
        UserError: when it cannot be written.
    """
    if path.is_dir():
        raise UserError(f"--trace {path} is a folder; name a file in it")
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        yield lambda record: print(json.dumps(record), file=file)
