"""The Composer logger destination that writes the file."""

from __future__ import annotations

import csv
import os
from typing import TYPE_CHECKING, Any

from composer.loggers import LoggerDestination

if TYPE_CHECKING:
    from pathlib import Path


class Table(LoggerDestination):
    """Logger destination that appends metrics to a CSV file, one per line; only rank 0 writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Append a line with the step, the name and the value of each metric."""
        if os.environ.get("RANK", "0") == "0":
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([step, name, float(value)] for name, value in metrics.items())
