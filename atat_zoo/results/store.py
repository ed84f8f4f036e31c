"""The only module that opens a run's evaluations/: a JSON object for each result."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import LeftOut, NotKept, UserError, clip
from atat_zoo.parsing import from_json, read
from atat_zoo.run import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeVar

    from atat_zoo.run import RunFolder

    T = TypeVar("T")

Table = dict[str, Any]


def files(run: RunFolder) -> list[Path]:
    """Return the files in evaluations/ by name."""
    return sorted(run.evaluations.glob("*.json"))


def tables(run: RunFolder, *, warn: bool = True) -> Iterator[Table]:
    """Yield the results by the names of their files; one that cannot be read is a warning, if `warn`."""
    for path in files(run):
        try:
            table = from_json(read(path))
        except (OSError, ValueError) as error:
            if warn:
                problem = f"{clip(path)} cannot be read: {clip(error)}"
                warnings.warn(f"{problem}; it is left out: evaluate again", LeftOut, stacklevel=1)
            continue
        if isinstance(table, dict) and type(table.get("step")) is int:
            yield table


def write(run: RunFolder, name: str, table: Table, settings: Sequence[Any] = (), *, required: bool = False) -> None:
    """Write a result, with a digest of `settings` in the name of its file; see `RunResult.record`."""
    name = re.sub(r"[^\w.=]+", "-", name)
    if settings:
        name += f"-{_digest(settings)}"
    try:
        write_json(run.evaluations / f"{name}.json", table)
    except UserError as error:
        if required:
            raise
        reason = str(error).partition(";")[0]
        warnings.warn(f"this result is not kept in the run: {reason}", NotKept, stacklevel=3)


def kept(run: RunFolder, name: str, settings: Table, load: Callable[[Table], T]) -> T | None:
    """Return what `once` has kept under these settings; None if it is absent or damaged, which `load` says by an error.

    Settings are JSON values, with whatever the measurement depends on.
    """
    try:
        table = from_json(read(_file(run, name, settings)))
        return load(table) if table["settings"] == _plain(settings) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def once(run: RunFolder, name: str, settings: Table, load: Callable[[Table], T], measure: Callable[[], Table]) -> T:
    """Return what is kept under these settings, which is measured and written first unless it is there.

    Raises:
        UserError: when it cannot be written or read back.
    """
    found = kept(run, name, settings, load)
    if found is None:
        path = _file(run, name, settings)
        write_json(path, {"settings": _plain(settings), **measure()})
        found = kept(run, name, settings, load)
        if found is None:
            raise UserError(f"{path} cannot be read back; is it being changed by another program?")
    return found


def _file(run: RunFolder, name: str, settings: Table) -> Path:
    return run.evaluations / f"{name}-{_digest(_plain(settings))}.json"


def _plain(settings: Table) -> Table:
    plain: Table = json.loads(json.dumps(settings))  # JSON has no tuples
    return plain


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
