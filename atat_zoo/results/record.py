"""What every result is: numbers with all that they are of, as a JSON object in the run's evaluations/."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.results import store
from atat_zoo.run import RunFolder


@attrs.frozen(auto_attribs=False)
class RunResult(ABC):
    """The numbers of a measurement; a subclass is an attrs class with these fields among others.

    Attributes:
        step: optimizer steps of the weights.
        seed: of what was drawn.
    """

    step: int
    seed: int

    @property
    @abstractmethod
    def key(self) -> str:
        """What is measured and on how much: the beginning of the file's name."""

    @property
    def settings(self) -> tuple[Any, ...]:
        """What else tells it from another result with the same key, as JSON values."""
        return ()

    def to_table(self) -> dict[str, Any]:
        """Return everything as a JSON object; non-finite numbers become null."""
        table: dict[str, Any] = finite(attrs.asdict(self))
        return table

    def record(self, run: str | Path | RunFolder, *, required: bool = False) -> None:
        """Write it into a run folder; another seed, step or setting gives another file.

        What cannot be written is a warning, since the caller has the numbers.

        Raises:
            UserError: when it cannot be written and is `required`.
        """
        name = f"{self.key}-seed{self.seed}-step{self.step:08d}"
        folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
        store.write(folder, name, self.to_table(), self.settings, required=required)


def finite(value: Any) -> Any:
    """Return a JSON value with None for numbers that JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
