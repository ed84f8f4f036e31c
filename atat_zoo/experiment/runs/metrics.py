"""metrics.jsonl: one line per logged step. Imports no torch."""

import json
import math
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from atat_zoo.errors import UserError
from atat_zoo.system import atomic, parsing


class MetricsFile:
    """The metrics of a run, which are there after a crash, too."""

    def __init__(self, run: Path) -> None:
        self.metrics = run / "metrics.jsonl"
        self.damaged = run / "metrics.damaged"

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            reason = f"{self.metrics} cannot be written: {error.strerror}"
            raise UserError(f"{reason}; free some space and resume") from error

    def read_metrics(self, *, damaged: bool = False) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, without a truncated last line.

        Any other damaged line is refused, or with `damaged` left out.
        """
        lines, problem = self._metrics()
        if problem and not damaged:
            raise UserError(f"{problem}; copy the run again, or leave these lines out")
        return lines

    def last_metrics(self) -> dict[str, Any]:
        """Return the last whole line of metrics.jsonl, read from the end; an empty table if it has no line."""
        with suppress(OSError), parsing.opened(self.metrics) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return next(filter(None, map(_line, reversed(file.read().split(b"\n")))), {})
        return {}

    def cut_metrics(self, step: int) -> str:
        """Drop the lines after `step`, so that a resumed run writes each step once, and every damaged line.

        Returns a sentence about what is damaged and where it is kept, or an empty text.
        """
        try:
            lines, problem = self._metrics()
        except UserError as error:
            lines, problem = [], str(error).partition(";")[0]
        if problem:
            if self.metrics.is_file():
                shutil.copyfile(self.metrics, self.damaged)
            else:  # a link in a circle
                self.metrics.replace(self.damaged)
            problem += f"; the file is kept as {self.damaged.name}, and what can be read of it is used"
        atomic.write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step))
        return problem

    def _metrics(self) -> tuple[list[dict[str, Any]], str]:
        """Return the lines of metrics.jsonl that are whole, and a sentence if others than a torn last one are not."""
        try:
            texts = parsing.read(self.metrics).split(b"\n")
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            raise UserError(f"{self.metrics} cannot be read: {error.strerror}; make it a readable file") from None
        lines: list[dict[str, Any]] = []
        damaged = []
        for number, text in enumerate(texts, 1):
            line = _line(text) if text.strip() else None
            if line and line["step"] > (lines[-1]["step"] if lines else -1):
                lines.append(line)
            elif text.strip() and number < len(texts):  # what follows the last line break was torn off
                damaged.append(number)
        if not damaged:
            return lines, ""
        which = f"line {damaged[0]} is" if len(damaged) == 1 else f"{len(damaged)} lines from line {damaged[0]} on are"
        return lines, f"{self.metrics}: {which} damaged"


_TAIL = 1 << 16  # bytes that hold a line of metrics.jsonl, with all that callbacks measure
# What others compute with, in a line of metrics.jsonl.
_NUMBERS = {"step": int, "tokens": int, "peak_memory": int, "tokens_per_second": float, "seconds": float}


def _line(text: bytes) -> dict[str, Any] | None:
    """Return a line of metrics.jsonl, or None when it is not what `append_metrics` wrote."""
    with suppress(ValueError, OverflowError):
        line = parsing.from_json(text)
        if isinstance(line, dict) and "step" in line:
            values = [(line.get(key, 0), kind) for key, kind in _NUMBERS.items()]
            if all(type(value) in (int, kind) and math.isfinite(value) for value, kind in values):
                return line
    return None
