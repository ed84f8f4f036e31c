"""Record the terminal output of `atat`, from training to sampling, as docs/report/terminal.svg."""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import shlex
import struct
import sys
import tempfile
import termios
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

FIGURE = Path(__file__).parents[1] / "docs" / "report" / "terminal.svg"
COMMANDS = (
    "atat train quickstart evaluation.samples=0",
    "atat watch runs/quickstart --once",
    "atat sample runs/quickstart --num-samples 2 --prompt 'My fellow citizens'",
)
COLUMNS, LINES, TALLEST = 104, 16, 300  # TALLEST: maximum number of lines of all output
# pyte's colour names that differ from rich's.
NAMES = {"brown": "yellow", "brightblack": "bright_black", "default": None}


def main() -> None:
    """Write the figure. It needs pyte: pip install 'atat-zoo[dev]'."""
    import pyte

    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", help="folder to train in (default: a temporary folder, which is deleted)")
    given, _ = parser.parse_known_args()
    screen = pyte.Screen(COLUMNS, TALLEST)
    with tempfile.TemporaryDirectory() as temporary:
        stream = pyte.ByteStream(screen)
        for command in COMMANDS:
            stream.feed(f"\033[1;32m$\033[0;1m {command}\033[0m\r\n".encode())
            printed(command, given.folder or temporary, stream.feed)
            stream.feed(b"\r\n" * (command != COMMANDS[-1]))
    FIGURE.write_text(drawn(screen), encoding="utf-8")
    print(f"  {FIGURE}: {FIGURE.stat().st_size / 1000:.0f} kB")


def printed(command: str, folder: str, feed) -> None:
    """Run a command in its own terminal, and pass its output to `feed`.

    Raises:
        SystemExit: If the command fails.
    """
    words = shlex.split(command)
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", PYTHONPATH=str(Path(__file__).parents[1]))
        os.execv(sys.executable, [sys.executable, "-m", "atat_zoo", *words[1:]])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with suppress(OSError):  # Linux raises it when the other end is closed
        while some := os.read(terminal, 65536):
            feed(some)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"{command} ended with {code}")


def look(one) -> Style:
    """Return the rich style of one of pyte's characters."""
    colour = NAMES.get(one.fg, f"#{one.fg}" if re.fullmatch(r"[0-9a-f]{6}", one.fg) else one.fg)
    return Style(color=colour, bold=one.bold, italic=one.italics, reverse=one.reverse)


def drawn(screen) -> str:
    """Return the content of the terminal as an SVG that makes no network requests."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    for y in range(screen.cursor.y):
        line = Text(no_wrap=True)
        for style, some in groupby((screen.buffer[y][x] for x in range(COLUMNS)), key=look):
            line.append("".join(one.data for one in some), style)
        line.rstrip()
        console.print(line)
    svg = console.export_svg(title="atat", unique_id="terminal")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    main()
