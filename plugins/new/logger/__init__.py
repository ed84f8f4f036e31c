"""A logger that writes a CSV file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from pathlib import Path

    from composer.loggers import LoggerDestination

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderLogger:
    """Appends a line `step,metric,value` to a CSV file for each logged metric, also after a run is resumed."""

    name = "placeholder"
    summary = "writes a CSV file with step, metric and value to the run folder"
    refs = ()

    file: str = param("placeholder.csv", help="name of the CSV file")

    def build(self, folder: Path) -> LoggerDestination:
        """Return a Composer `LoggerDestination` that writes to the file in `folder`, a folder of the run."""
        from .destination import Table

        return Table(folder / self.file)


@hookimpl
def atat_zoo_logger() -> list[type]:
    """Return the loggers in this package."""
    return [PlaceholderLogger]
