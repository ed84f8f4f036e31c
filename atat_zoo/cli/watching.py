"""The steps of a sampler, as they happen: on a terminal, and in a file."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from atat_zoo.cli.console import on_terminal, printable
from atat_zoo.errors import UserError
from atat_zoo.run.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

    from atat_zoo.tokenizers import TokenizerModel

# A step stays for so long, in seconds, that an eye can follow.
STEP = 0.04
HIDDEN = "▁"


class Watch:
    """Texts on the terminal while they unmask; an observer of `Sampler.sample`."""

    def __init__(self, row: Sequence[int], number: int, tokenizer: TokenizerModel, console: Console) -> None:
        """Begin with `number` texts that are all the same row, given tokens and masks."""
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
        except BaseException:  # an interrupt too: the cursor comes back
            self.live.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take the view away; what was written is printed in its place."""
        self.live.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        """Take in a step and show it."""
        if hidden := record.get("hidden"):
            self._put(hidden, [self.mask] * len(hidden["rows"]))
        if "tokens" in record:
            self._put(record, record["tokens"])
        if self.live is None:
            return
        time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = time.monotonic() + STEP
        self.live.refresh()

    def picture(self) -> Text:
        """Return the texts as they are, masks dim; no more of them than the terminal has lines."""
        from rich.text import Text

        made = Text()
        for number, row in enumerate(self.rows[: self.console.height]):
            if len(self.rows) > 1:
                made.append(f"[{number + 1}] ", style="bold")
            for masked, tokens in itertools.groupby(row, lambda token: token == self.mask):
                if masked:
                    made.append(HIDDEN * len(list(tokens)), style="dim")
                else:
                    made.append(printable(self.tokenizer.decode(tokens)))
            made.append("\n")
        return made

    def _put(self, where: dict[str, Any], tokens: Sequence[int]) -> None:
        for row, position, token in zip(where["rows"], where["positions"], tokens, strict=True):
            self.rows[row][position] = token


def terminal() -> Console:
    """Return the terminal to watch on.

    Raises:
        UserError: when there is none.
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
