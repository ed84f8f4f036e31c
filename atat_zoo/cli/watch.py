"""`atat watch`: a run while it trains, on a page that follows it or in the terminal."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import on_terminal, printable
from atat_zoo.errors import UserError
from atat_zoo.report import PAGE, require
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

_EVERY = 2.0  # seconds between two looks at the files


@click.command()
@options("run")
@click.option("--terminal", is_flag=True, help="Draw the curves as text; once where the output is no terminal.")
@click.option("--once", is_flag=True, help="Draw them once, and end.")
@click.option("--port", default=8421, show_default=True, type=click.IntRange(0, 65535), help="0 for one that is free.")
def watch(run: Path, terminal: bool, once: bool, port: int) -> None:
    """Show RUN while it trains: the page of `atat report`, which follows it until Ctrl-C.

    The page is served to this machine only; from another one, `ssh -L 8421:localhost:8421 HOST` leads here.
    """
    folder = RunFolder(run)
    folder.table()
    require("atat watch", *(("plotext",) if terminal or once else PAGE))
    try:
        if terminal or once:
            _draw(folder, once or not on_terminal())
        else:
            _serve(run, port)
    except KeyboardInterrupt:
        pass  # which is how it ends


def _serve(run: Path, port: int) -> None:
    from atat_zoo.report.watch import PageServer

    with PageServer(run, port) as server:
        click.echo(f"{run} is shown at {server.address} until Ctrl-C")
        server.serve_forever()


def _draw(folder: RunFolder, once: bool) -> None:
    """Draw the curves whenever the run's files or the terminal have changed, until it is finished."""
    from atat_zoo.report.watch import frame, stamp

    width, height = shutil.get_terminal_size()
    if once:
        click.echo(printable(frame(folder, width, height)[0]))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    seen, text, finished = None, "", False
    try:
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while not finished:
                size = shutil.get_terminal_size()
                if seen != (now := (stamp(folder), size)):
                    try:
                        text, finished = frame(folder, *size)
                        seen = now
                    except (UserError, OSError) as error:  # gone for a moment
                        text = str(error)
                    live.update(Text(printable(text)), refresh=True)
                time.sleep(_EVERY)
    finally:
        click.echo(printable(text))
