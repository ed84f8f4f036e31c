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
    """Writes lines `step,metric,value` to a file in the run's folder `logs`, to which a resumed run appends."""

    name = "placeholder"
    summary = "writes a CSV file with step, metric and value to the run folder"
    refs = ()

    file: str = param("placeholder.csv", help="file name")

    def build(self, folder: Path) -> LoggerDestination:
        """Return Composer's destination."""
        from .destination import Table

        return Table(folder / self.file)


@hookimpl
def atat_zoo_logger() -> list[type]:
    """Return the components in this package."""
    return [PlaceholderLogger]
