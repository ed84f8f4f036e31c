"""A logger that writes a CSV file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from pathlib import Path

    from composer.loggers import LoggerDestination

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderLogger:
    """Writes lines `step,metric,value` to a file in the run's folder `logs`; a resumed run appends to it."""

    name = "placeholder"
    summary = "CSV file of step, metric and value in the run folder"
    refs = ()

    file: str = param("placeholder.csv", help="file name")

    def build(self, folder: Path) -> LoggerDestination:
        """Return Composer's destination."""
        from .destination import Table

        return Table(folder / self.file)


@hookimpl
def atat_zoo_logger() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderLogger]
