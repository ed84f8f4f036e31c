"""Read published models from the hub, a folder or a Lightning checkpoint, without running their code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.system import parsing
from atat_zoo.system.errors import UserError, clip

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CHECKPOINTS = (".ckpt",)
HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_NAME = "pass a model name on the hub, a folder with config.json and safetensors, or a Lightning checkpoint (*.ckpt)"


class Base(NamedTuple):
    """Base model of an adapter: a name on the hub or a folder, and a revision."""

    name: str
    revision: str | None = None


class Published:
    """Published model, identified by a name on the Hugging Face hub, a folder, or a checkpoint file."""

    def __init__(self, model: str, revision: str | None = None) -> None:
        self.model, self.revision = model, revision

    @property
    def _path(self) -> Path:
        return Path(self.model).expanduser()

    @property
    def is_checkpoint(self) -> bool:
        """Whether the model is a Lightning checkpoint, a single file whose name ends in .ckpt."""
        return self._path.suffix in CHECKPOINTS

    def file(self, name: str) -> Path | None:
        """Return the path of a file from the model, downloaded if needed, or None if the model does not have it.

        Raises:
            UserError: if the file is outside the model's folder, the model does not exist, or the download fails.
        """
        if Path(name).name != name:
            raise UserError(
                f"{self.model} refers to the file {clip(repr(name))} outside its folder; download the model again"
            )
        if self._path.is_dir():
            path = self._path / name
            refuse_links_out(self._path, [path])
            return path if path.is_file() else None
        if self._path.exists():
            raise UserError(f"{self.model} is not a folder; {_NAME}")
        return fetched(self.model, name, self.revision)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of config.json, or the training settings from a checkpoint.

        Raises:
            UserError: if it is missing or cannot be read.
        """
        if self.is_checkpoint:
            return self._checkpoint[0]
        path = self.file(CONFIG)
        if path is None:
            raise UserError(f"{self.model} has no {CONFIG}; {_NAME}")
        return _json(path)

    @cached_property
    def _checkpoint(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        from atat_zoo_checkpoints.lightning import read_checkpoint

        return read_checkpoint(self._path)

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """Mapping from name to weight, loaded on access; for a checkpoint, a dict, with EMA weights if it has them.

        Raises:
            UserError: if safetensors are missing or damaged, or do not match the index.
        """
        if self.is_checkpoint:
            return self._checkpoint[1]
        if (single := self.file(WEIGHTS)) is not None:
            return Safetensors([single])
        index = self.file(INDEX)
        if index is None:
            raise UserError(f"{self.model} does not have {WEIGHTS} or {INDEX}; choose a model with safetensors")
        names = _json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{index} has no weight_map from names to files; download the model again")
        files = {name: self.file(name) for name in sorted(set(names.values()))}
        if absent := [name for name, path in files.items() if path is None]:
            raise UserError(f"{self.model} lacks {absent[0]}, which {INDEX} names; download the model again")
        found = Safetensors([path for path in files.values() if path is not None])
        for name, path in found.places:
            if names.get(name) != path.name:
                said = f"places it in {clip(repr(names[name]))}" if name in names else "does not list it"
                raise UserError(f"{path} contains {clip(name)}, but {index} {said}; download the model again")
        if lost := sorted(names.keys() - found.keys()):
            raise UserError(f"{names[lost[0]]} lacks {clip(lost[0])}, which {index} names; download the model again")
        return found


class Safetensors(Mapping[str, "Tensor"]):
    """Mapping from name to tensor for safetensors files; a tied tensor, which is stored once, has both names."""

    def __init__(self, paths: list[Path]) -> None:
        from safetensors import SafetensorError, safe_open

        self.of: dict[str, tuple[Any, str]] = {}  # by name: the file, and the tensor's name in it
        self.places: list[tuple[str, Path]] = []  # each name, and the file that contains it
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
                names = list(opened.keys())
                shared = {name: first for name, first in (opened.metadata() or {}).items() if first in names}
                self.of |= {name: (opened, first) for name, first in (shared | {n: n for n in names}).items()}
                self.places += [(name, path) for name in names]
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path} is not a safetensors file: {clip(error)}; download the model again") from None

    def __getitem__(self, name: str) -> Tensor:
        opened, own = self.of[name]
        return opened.get_tensor(own)

    def __iter__(self) -> Iterator[str]:
        return iter(self.of)

    def __len__(self) -> int:
        return len(self.of)


def refuse_links_out(folder: Path, paths: Iterable[Path] | None = None) -> None:
    """Raise a `UserError` if a file in a received folder is a link to a file outside the folder.

    Only `paths` are checked, if they are passed. A snapshot in the hub's cache may link to its blobs.
    """
    root = Path(os.path.realpath(folder))
    own = [root, root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [root]
    if paths is None:
        paths = (Path(place, name) for place, within, files in os.walk(folder) for name in (*within, *files))
    for path in paths:
        if not any(Path(os.path.realpath(path)).is_relative_to(each) for each in own):
            raise UserError(f"{path} is a link to a file outside its folder; replace the link with the file")


def fetched(model: str, name: str, revision: str | None = None) -> Path | None:
    """Return the path of a file from a model on the hub, downloaded if needed, or None if the model does not have it.

    Raises:
        UserError: if the model does not exist, access is denied, or the hub cannot be reached.
    """
    import logging

    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except LocalEntryNotFoundError:
        reason = f"{name} is not in the cache, and the hub cannot be reached"
    except EntryNotFoundError:
        return None
    except Exception as error:  # unknown model, no access, invalid name: the library raises many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise UserError(
        f"cannot download {clip(repr(model))} ({clip(reason)}); pass a model name on the hub, or an existing folder or "
        ".ckpt file, and check the network connection"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content: Any = parsing.from_json(parsing.read(path))
        return dict(content)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not a JSON object: {clip(error)}; download the model again") from None
