"""Output: rich tables and progress bars on a terminal, plain text elsewhere, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from atat_zoo.evaluation.results.format import markdown


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(f"\\u{ord(c):04x}" if "\x7f" <= c <= "\x9f" else c for c in text))  # which JSON leaves


def on_terminal() -> bool:
    """Return whether standard output is a terminal; the parent process may have closed it."""
    return sys.stdout is not None and sys.stdout.isatty()


def printable(text: str) -> str:
    """Replace unprintable characters of a text: they could move the cursor or change colours."""
    return "".join(c if c == "\n" or c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], as_markdown: bool = False) -> None:
    """Print a table: with rich on a terminal, in aligned columns elsewhere; names in it may be anybody's."""
    if as_markdown:
        click.echo("\n".join(markdown(columns, rows)))
        return
    rows = [[printable(cell) for cell in row] for row in rows]
    if on_terminal():
        from rich.console import Console
        from rich.table import Table

        rich_table = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            rich_table.add_column(column, overflow="fold")
        for row in rows:
            rich_table.add_row(*row)
        Console(markup=False, highlight=False).print(rich_table)
        return
    # The last column is not padded, so lines do not end in spaces.
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns) - 1)]
    for row in [columns, *rows]:
        click.echo("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]).rstrip())


class Bars:
    """A `Reporter`: progress bars with the remaining time on a terminal, occasional lines elsewhere."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self.progress: Any = None
        self.tasks: dict[str, Any] = {}
        self.last = 0.0  # when a line was printed

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
        """Shards are being built."""
        self.working(f"data: {stage}", done, total)

    def evaluating(self, done: int, total: int) -> None:
        """Held-out sequences are being evaluated."""
        self.working("evaluating", done, total)

    def training(self, step: int, steps: int, line: dict[str, Any]) -> None:
        """A line of metrics was recorded."""
        rate = line.get("tokens_per_second", 0)
        note = f"loss {line['loss']:.3f}  {rate:,.0f} tokens/s"
        if line.get("stage") not in (None, "none", "train"):  # which are no curriculum's
            note += f"  {line['stage']}"
        if "utilisation" in line:
            note += f"  {line['utilisation']:.0%} of peak"
        self.working("training", step, steps, note)

    def message(self, text: str) -> None:
        """Print a line."""
        if self.progress:
            self.progress.console.print(text, markup=False, highlight=False)
        elif not self.silent:
            click.echo(text)

    def working(self, name: str, done: int, total: int | None, note: str = "") -> None:
        """A task of this name is in progress."""
        if self.silent:
            return
        if self.progress:
            if name not in self.tasks:
                for earlier in self.progress.tasks:  # one of unknown length has ended where another begins
                    if earlier.total is None:
                        self.progress.update(earlier.id, total=earlier.completed)
                self.tasks[name] = self.progress.add_task(name, total=total, note=note)
            self.progress.update(self.tasks[name], completed=done, total=total, note=note)
            return
        # In a log file: a line every five seconds, and the last one.
        now = time.monotonic()
        if now - self.last > 5 or (total and done >= total):
            self.last = now
            click.echo(f"{name} {done}/{total or '?'} {note}".rstrip())
