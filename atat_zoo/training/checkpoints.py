"""Read a checkpoint as data: whatever it holds, nothing of it runs.

A checkpoint is a pickle, and a pickle may name any function to be called. Here it may only build tensors, numbers,
texts and containers of them, which is all that Composer's state and ours need.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import timedelta
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from composer import Callback, Logger, State
from torch.torch_version import TorchVersion

from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Besides what torch itself allows. `TorchVersion` is a text.
ALLOWED: list[Any] = [timedelta, TorchVersion]
_ONLY_DATA, _ANYTHING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextmanager
def only_data() -> Iterator[None]:
    """Let `torch.load` build nothing but data, also where its caller, as Composer does, asks for more."""
    before = {name: os.environ.pop(name, None) for name in (_ONLY_DATA, _ANYTHING)}
    os.environ[_ONLY_DATA] = "1"
    try:
        with torch.serialization.safe_globals(ALLOWED):
            yield
    finally:
        del os.environ[_ONLY_DATA]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def inert(checkpoint: dict[str, Any]) -> None:
    """Remove from a loaded checkpoint what Composer would evaluate as Python; its `load_ignore_keys`."""
    state = checkpoint["state"]
    # Of algorithms in a list, Composer evaluates the texts that describe them; of a table it loads the states alone.
    if "algorithms" in state:
        state["algorithms"] = dict(state["algorithms"])


def without_generators(checkpoint: dict[str, Any]) -> None:
    """Remove the states of the generators before a checkpoint is written: they are not restored, and not all data."""
    del checkpoint["rng"]


class Loading(Callback):
    """Makes one sentence of whatever goes wrong while Composer loads a checkpoint."""

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None: a training from its beginning
        self.busy = False

    def before_load(self, state: State, logger: Logger) -> None:
        """The loading begins."""
        self.busy = True

    def after_load(self, state: State, logger: Logger) -> None:
        """The loading has succeeded."""
        self.busy = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Load only data.

        Raises:
            UserError: when the checkpoint holds anything else, or not what this training needs.
        """
        try:
            with only_data():
                yield
        except Exception as error:
            if self.path is None or not self.busy or isinstance(error, UserError):
                raise
            raise refused(self.path, error) from error


def refused(path: Path, error: Exception) -> UserError:
    """Return the sentence about a checkpoint that cannot be continued from."""
    if isinstance(error, UnpicklingError):
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        what = f" ({foreign[1]})" if foreign else ""
        why = (
            f"it holds more than tensors, numbers and texts{what}, and nothing else is read, so that nothing of it runs"
        )
    else:
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return UserError(
        f"the checkpoint {path} cannot be continued from: {why}; delete it to continue from an earlier one, or train "
        "again with --overwrite"
    )


def check_saved(path: Path) -> None:
    """Refuse a checkpoint that could not be loaded again, when it is written and not when it is needed.

    Raises:
        UserError: when a part's state is not made of tensors, numbers, texts, and lists and tables of them.
    """
    with only_data():
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if foreign:
        raise UserError(
            f"a run with a checkpoint that holds {', '.join(sorted(foreign))} could not be resumed; a callback, "
            "algorithm, optimizer or schedule of a plugin has such a state: let its `state_dict` return tensors, "
            "numbers and texts"
        )
