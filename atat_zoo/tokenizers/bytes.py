"""UTF-8 bytes as tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component
from atat_zoo.tokenizers.tables import TableModel, check_file, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from atat_zoo.tokenizers import TokenizerModel


@component
class Bytes:
    """Every byte of the UTF-8 text is a token: V = 258, ids 0 to 255, BOS 256, EOS 257."""

    name = "bytes"
    summary = "one token per UTF-8 byte; V = 258 with BOS and EOS"
    refs = ("arXiv:2105.13626",)

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer; there is nothing to learn."""
        return BytesModel()

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer, after a look at the file that `save` wrote."""
        check_file(folder, {"type": "bytes"})
        return BytesModel()


class BytesModel(TableModel):
    """The tokenizer of `Bytes`."""

    def __init__(self) -> None:
        super().__init__([bytes([i]) for i in range(256)] + [b"", b""], bos=256, eos=257)

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the bytes of several texts."""
        return [list(text.encode()) for text in texts]

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`."""
        write_file(folder, {"type": "bytes"})
