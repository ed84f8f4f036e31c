"""A model that others have published: a name on the hub, a folder, or a checkpoint of Lightning. No code of it runs."""

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
_NAME = "name a model of the hub, a folder with config.json and safetensors, or a checkpoint of Lightning, *.ckpt"


class Base(NamedTuple):
    """The model beside whose weights an adapter's matrices are: a name on the hub or a folder, and its revision."""

    name: str
    revision: str | None = None


class Published:
    """A model by its name on the Hugging Face hub, its folder, or its file of weights."""

    def __init__(self, model: str, revision: str | None = None) -> None:
        self.model, self.revision = model, revision

    @property
    def _path(self) -> Path:
        return Path(self.model).expanduser()

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is one file, of Lightning's form."""
        return self._path.suffix in CHECKPOINTS

    def file(self, name: str) -> Path | None:
        """Return the path of a file of the model, fetched if it is on the hub, or None if it has no such file.

        Raises:
            UserError: when there is no such model, or the network.
        """
        if Path(name).name != name:
            raise UserError(f"{self.model} names a file {clip(repr(name))} outside its folder; get the model again")
        if self._path.is_dir():
            path = self._path / name
            refuse_links_out(self._path, [path])
            return path if path.is_file() else None
        if self._path.exists():
            raise UserError(f"{self.model} is no folder; {_NAME}")
        return fetched(self.model, name, self.revision)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of its config.json, or the settings that a checkpoint keeps of its training.

        Raises:
            UserError: when it has none, or none that can be read.
        """
        if self.is_checkpoint:
            settings: dict[str, Any] = self._checkpoint[0]
            return settings
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
        """Its weights by name, each read when it is asked for; those of a checkpoint are the moving average.

        Raises:
            UserError: when it has no safetensors, or a file of them is missing, damaged, or holds other weights than
                the index says.
        """
        if self.is_checkpoint:
            return self._checkpoint[1]
        if (single := self.file(WEIGHTS)) is not None:
            return Safetensors([single])
        index = self.file(INDEX)
        if index is None:
            raise UserError(f"{self.model} has neither {WEIGHTS} nor {INDEX}; name a model with safetensors")
        names = _json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{index} has no weight_map from names to files; get the model again")
        files = {name: self.file(name) for name in sorted(set(names.values()))}
        if absent := [name for name, path in files.items() if path is None]:
            raise UserError(f"{self.model} lacks {absent[0]}, which {INDEX} names; get the model again")
        found = Safetensors([path for path in files.values() if path is not None])
        for name, path in found.places:
            if names.get(name) != path.name:
                said = f"it is in {clip(repr(names[name]))}" if name in names else "there is no such weight"
                raise UserError(f"{path} has {clip(name)}, and {index} says that {said}; get the model again")
        if lost := sorted(names.keys() - found.keys()):
            raise UserError(f"{names[lost[0]]} lacks {clip(lost[0])}, which {index} names; get the model again")
        return found


class Safetensors(Mapping[str, "Tensor"]):
    """Tensors of files, by name; one that was left out as it is another's has both names, as the file says."""

    def __init__(self, paths: list[Path]) -> None:
        from safetensors import SafetensorError, safe_open

        self.of: dict[str, tuple[Any, str]] = {}  # the file of each, and its name there
        self.places: list[tuple[str, Path]] = []  # the names in each file
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
                names = list(opened.keys())
                shared = {name: first for name, first in (opened.metadata() or {}).items() if first in names}
                self.of |= {name: (opened, first) for name, first in (shared | {n: n for n in names}).items()}
                self.places += [(name, path) for name in names]
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path} is no safetensors file: {clip(error)}; get the model again") from None

    def __getitem__(self, name: str) -> Tensor:
        opened, own = self.of[name]
        tensor: Tensor = opened.get_tensor(own)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.of)

    def __len__(self) -> int:
        return len(self.of)


def refuse_links_out(folder: Path, paths: Iterable[Path] | None = None) -> None:
    """Raise a `UserError` if a file of a received folder, one of `paths` or any, is a link that leads out of it.

    A snapshot in the cache of the hub may lead to the blobs beside it, where all its files are.
    """
    root = Path(os.path.realpath(folder))
    own = [root, root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [root]
    if paths is None:
        paths = (Path(place, name) for place, within, files in os.walk(folder) for name in (*within, *files))
    for path in paths:
        if not any(Path(os.path.realpath(path)).is_relative_to(each) for each in own):
            raise UserError(f"{path} is a link that leads out of its folder; put the file itself in its place")


def fetched(model: str, name: str, revision: str | None = None) -> Path | None:
    """Return the path of a file of a model on the hub, once it is here; None if the model has no such file.

    Raises:
        UserError: when there is no such model, or no network.
    """
    import logging

    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except LocalEntryNotFoundError:
        reason = f"{name} is not here, and the hub cannot be reached"
    except EntryNotFoundError:
        return None
    except Exception as error:  # no such model, no right to it, a name that is none: the library raises many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise UserError(
        f"{clip(repr(model))} cannot be had ({clip(reason)}); name a model of the hub, or a folder or .ckpt file that "
        "is there, and see that the network is there if it must be fetched"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content: Any = parsing.from_json(parsing.read(path))
        return dict(content)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read as a table of JSON: {clip(error)}; get the model again") from None
