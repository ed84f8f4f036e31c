"""The base class of results, and their JSON files in a run's evaluations/, which only this module opens."""

import hashlib
import json
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import attrs

from atat_zoo.experiment.runs import RunFolder, write_json
from atat_zoo.system.errors import OmissionNote, UnsavedNote, UserError, clip
from atat_zoo.system.parsing import from_json, read

T = TypeVar("T")
Table = dict[str, Any]


@attrs.frozen(auto_attribs=False)
class RunResult(ABC):
    """The base class of results stored in a run folder; subclasses are attrs classes with these and further fields."""

    step: int  # optimizer steps of the weights
    seed: int  # of the random numbers

    @property
    @abstractmethod
    def key(self) -> str:
        """The quantity and the size of the evaluation, with which the file name begins."""

    @property
    def settings(self) -> tuple[Any, ...]:
        """Settings that distinguish this result from others with the same key, as JSON values."""
        return ()

    def to_table(self) -> dict[str, Any]:
        """Return all fields as a JSON object; non-finite numbers become null."""
        return finite(attrs.asdict(self))

    def record(self, run: str | Path | RunFolder, *, required: bool = False) -> None:
        """Save the result, one file per seed, step and settings; on failure, raise if `required` and otherwise warn."""
        name = re.sub(r"[^\w.=]+", "-", f"{self.key}-seed{self.seed}-step{self.step:08d}")
        if self.settings:
            name += f"-{_digest(self.settings)}"
        folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
        _write(folder.evaluations / f"{name}.json", self.to_table(), required)


def _write(path: Path, table: Table, required: bool) -> None:
    try:
        write_json(path, table)
    except UserError as error:
        if required:
            raise
        reason = str(error).partition(";")[0]
        warnings.warn(f"this result is not saved in the run: {reason}", UnsavedNote, stacklevel=3)


def finite(value: Any) -> Any:
    """Return a JSON value in which None replaces numbers that JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def files(run: RunFolder) -> list[Path]:
    """Return the files in evaluations/, sorted by name."""
    return sorted(run.evaluations.glob("*.json"))


def tables(run: RunFolder, *, warn: bool = True) -> Iterator[Table]:
    """Yield each result in evaluations/ as a JSON object; skip unreadable files, with a warning if `warn`."""
    for path in files(run):
        try:
            table = from_json(read(path))
        except (OSError, ValueError) as error:
            if warn:
                problem = f"{clip(path)} cannot be read: {clip(error)}"
                warnings.warn(f"{problem}, so it is ignored; evaluate again to replace it", OmissionNote, stacklevel=1)
            continue
        if isinstance(table, dict) and type(table.get("step")) is int:
            yield table


def kept(run: RunFolder, name: str, settings: Table, load: Callable[[Table], T]) -> T | None:
    """Return the result that `once` saved for these settings, or None if it is missing or `load` raises an error."""
    try:
        table = from_json(read(_file(run, name, settings)))
        return load(table) if table["settings"] == _plain(settings) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None


def once(
    run: RunFolder,
    name: str,
    settings: Table,
    load: Callable[[Table], T],
    measure: Callable[[], Table],
    *,
    required: bool = True,
) -> T:
    """Return the result with these settings, after computing it with `measure` and saving it if it does not exist.

    A failure to save the result raises an error if `required`, and otherwise gives a warning.
    """
    found = kept(run, name, settings, load)
    if found is None:
        path, table = _file(run, name, settings), {"settings": _plain(settings), **measure()}
        _write(path, table, required)
        found = kept(run, name, settings, load) if required else load(_plain(table))
        if found is None:
            raise UserError(f"{path} cannot be read after writing; check whether another program changes it")
    return found


def _file(run: RunFolder, name: str, settings: Table) -> Path:
    return run.evaluations / f"{name}-{_digest(_plain(settings))}.json"


def _plain(settings: Table) -> Table:
    return json.loads(json.dumps(settings))  # turns tuples into lists, as JSON does


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
