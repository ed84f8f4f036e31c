"""Corpora of which a part is here, because `atat data get` was interrupted: marked, so that nobody trains on a part.

<folder>/.NAME.source.part   what NAME.source.json will say, without its files, and the command that goes on
"""

from collections.abc import Iterable
from pathlib import Path

from atat_zoo.errors import UserError
from atat_zoo.system.parsing import from_json


def marker(folder: Path, name: str) -> Path:
    """Return the file that marks a corpus as unfinished; its table has `command`, `folder` and, by path, `source`."""
    return folder / f".{name}.source.part"  # hidden from patterns like text/*


def refuse_unfinished(paths: Iterable[Path], key: str) -> None:
    """Raise a `UserError` if one of the files that `corpus.<key>` names is of an unfinished corpus."""
    paths = list(paths)
    for folder in {folder for path in paths for folder in path.parents}:
        for mark in folder.glob(marker(Path(), "*").name):
            try:
                table = from_json(mark.read_bytes())
                command, within, named = table["command"], Path(table["folder"]), {*map(Path, table["source"])}
            except FileNotFoundError:  # it was finished now
                continue
            except (ValueError, TypeError, KeyError):
                raise UserError(f"{mark} is damaged; delete it, and run `atat data get` of its corpus again") from None
            for path in (path for path in paths if path.is_relative_to(folder)):
                here = within / path.relative_to(folder)
                if named & {here, *here.parents}:  # the file, or the folder of members of an archive
                    raise UserError(
                        f"corpus.{key}: {path} is of a corpus that was not fetched to its end; run `{command}`, or "
                        f"delete {mark} to read what is there"
                    )
