"""What tokenizers share whose tokens each stand for a fixed string of bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FILE = "tokenizer.json"


class TableModel:
    """Decoding by a table of bytes: half of a `TokenizerModel`, exact for every token.

    Attributes:
        vocabulary_size: V.
        bos: id that begins a sequence, or None.
        eos: id that ends one, or None.
    """

    def __init__(self, table: Sequence[bytes], *, bos: int | None, eos: int | None) -> None:
        """Keep the bytes of each id; empty for BOS, EOS and ids that stand for no text."""
        self._table = [*table, b"[MASK]"]
        self.vocabulary_size = len(table)
        self.bos = bos
        self.eos = eos

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD, the mask is written as `[MASK]`."""
        return b"".join([self._table[i] for i in ids]).decode("utf-8", "replace")

    def byte_counts(self) -> NDArray[np.int64]:
        """Return the UTF-8 bytes that each token stands for, int64 [V]."""
        return np.array([len(entry) for entry in self._table[:-1]], np.int64)


def write_file(folder: Path, content: dict[str, Any]) -> None:
    """Write a small tokenizer's `tokenizer.json`."""
    (folder / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def check_file(folder: Path, expected: dict[str, Any]) -> None:
    """Compare a small tokenizer's `tokenizer.json` with what the specification would write."""
    found = read_file(folder)
    if found != expected:
        raise UserError(
            f"{folder / FILE} is of another tokenizer than the experiment names: it says {_brief(found)}, "
            f"the experiment means {_brief(expected)}; change [tokenizer] or build the shards again"
        )


def read_file(folder: Path) -> Any:
    """Return the content of a folder's `tokenizer.json`."""
    path = folder / FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; build the shards again with `atat data build`") from None
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); build the shards again") from None


def _brief(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= 80 else f"{text[:77]}..."
