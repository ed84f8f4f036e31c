"""`atat` in a process of its own, on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CALL = "from atat_zoo.cli import main; main()"


def on_terminal(*words: str, cwd: Path | None = None, interrupt_after: int | None = None) -> tuple[int, str]:
    """Return the exit code, and what the terminal got; Ctrl-C is pressed when that many masks were drawn."""
    main_end, process_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CALL, *words],
        stdout=process_end,
        stderr=process_end,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "60", "TERM": "xterm"},
    )
    os.close(process_end)
    data = b""
    while True:
        try:
            piece = os.read(main_end, 4096)
        except OSError:  # the terminal is closed when its last writer is gone
            break
        if not piece:
            break
        data += piece
        if interrupt_after is not None and data.count("▁".encode()) > interrupt_after:
            process.send_signal(signal.SIGINT)
            interrupt_after = None
    os.close(main_end)
    text = data.decode("utf-8", "replace")
    assert "Traceback" not in text
    return process.wait(60), text
