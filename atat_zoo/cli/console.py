"""Print tables and progress, with rich on a terminal and as plain text elsewhere, and print JSON."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

if TYPE_CHECKING:
    from atat_zoo.evaluation.results.table import Table


WIDTH = 100  # maximum number of columns of the output; a narrower terminal wraps


def print_json(value: Any) -> None:
    """Print a value as indented JSON, in which control characters are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(f"\\u{ord(c):04x}" if "\x7f" <= c <= "\x9f" else c for c in text))  # JSON need not escape these


def on_terminal() -> bool:
    """Return whether standard output is a terminal, and False if the parent process closed it."""
    return sys.stdout is not None and sys.stdout.isatty()


def printable(text: str) -> str:
    """Return a text in which spaces or U+FFFD replace unprintable characters, which could move the cursor."""
    return "".join(c if c == "\n" or c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def paragraphs(sentences: Iterable[str], as_markdown: bool = False) -> None:
    """Print each sentence on a line of its own; wrap long sentences, except in Markdown."""
    for sentence in sentences:
        lines = [f"{sentence}  "] if as_markdown else textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")
        click.echo("\n".join(lines))


def headed(title: str, text: str) -> None:
    """Print a text under a horizontal rule with its title."""
    click.echo(f"\n{f'── {title} '.ljust(72, '─')}\n{text}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], as_markdown: bool = False) -> None:
    """Print rows of strings under column names, as `show` prints a table."""
    from atat_zoo.evaluation.results.table import Table

    show(Table(columns=columns, rows=rows), as_markdown)


def show(table: Table, as_markdown: bool = False) -> None:
    """Print a table: as Markdown, with rich on a terminal, or as text split to fit into about WIDTH characters."""
    if as_markdown:
        click.echo("\n".join(table.to_markdown()))
        return
    table = attrs.evolve(table, rows=[map(printable, row) for row in table.texts])  # names come from anywhere
    if not on_terminal():
        click.echo("\n".join(table.to_text(WIDTH)))
        return
    from rich import table as rich
    from rich.console import Console

    drawn = rich.Table(*(rich.Column(each, overflow="fold") for each in table.headings), box=None, pad_edge=False)
    drawn.header_style = "bold"
    for row in table.texts:
        drawn.add_row(*row)
    Console(markup=False, highlight=False).print(drawn)


class Bars:
    """A `training.Reporter` that shows bars on a terminal, a line every five seconds elsewhere, nothing if silent."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self.progress: Any = None
        self.tasks: dict[str, Any] = {}
        self.last = 0.0  # time of the last printed line

    def __enter__(self) -> Bars:
        if not self.silent and on_terminal():
            from rich import progress

            times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
            bar = (progress.BarColumn(), progress.MofNCompleteColumn(), *times)
            name, note = (progress.TextColumn(f"{{task.{field}}}") for field in ("description", "fields[note]"))
            self.progress = progress.Progress(name, *bar, note)
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress:
            self.progress.stop()

    def building(self, stage: str, done: int, total: int | None) -> None:
        """Show the progress of a stage of building shards; pass None as `total` if it is unknown."""
        self.working(f"data: {stage}", done, total)

    def evaluating(self, done: int, total: int) -> None:
        """Show the progress of an evaluation, in sequences."""
        self.working("evaluating", done, total)

    def training(self, step: int, steps: int, line: dict[str, Any]) -> None:
        """Show the progress of training, with the loss and speed in `line`, the metrics recorded at a step."""
        rate = line.get("tokens_per_second", 0)
        note = f"loss {line['loss']:.3f} nats/token  {rate:,.0f} tokens/s"
        if line.get("stage") not in (None, "none", "train"):  # these are not curriculum stages
            note += f"  curriculum {line['stage']}"
        if "utilisation" in line:
            note += f"  MFU {line['utilisation']:.0%}"
        self.working("training", step, steps, note)

    def message(self, text: str) -> None:
        """Print a message, above the bars if there are any; if silent, print nothing."""
        if self.progress:
            self.progress.console.print(text, markup=False, highlight=False)
        elif not self.silent:
            click.echo(text)

    def working(self, name: str, done: int, total: int | None, note: str = "") -> None:
        """Show that `done` of `total` (None if unknown) units of the task `name` are complete."""
        if self.silent:
            return
        if self.progress:
            if name not in self.tasks:
                for earlier in self.progress.tasks:  # a task of unknown length ends when the next one begins
                    if earlier.total is None:
                        self.progress.update(earlier.id, total=earlier.completed)
                self.tasks[name] = self.progress.add_task(name, total=total, note=note)
            self.progress.update(self.tasks[name], completed=done, total=total, note=note)
            return
        # In a log file, print a line every five seconds, and the last one.
        now = time.monotonic()
        if now - self.last > 5 or (total and done >= total):
            self.last = now
            click.echo(f"{name} {done}/{total or '?'} {note}".rstrip())
