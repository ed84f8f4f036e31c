"""A tokenizer with two tokens per byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from atat_zoo.data.tokenizers import Tokenizer, TokenizerModel
from atat_zoo.registry import component, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


class HalfBytes(TokenizerModel):
    """Tokenizer with ids 0 to 15 for the high half of a byte, 16 to 31 for the low half, 32 for BOS and 33 for EOS."""

    vocabulary_size = 34
    bos = 32
    eos = 33

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, two per UTF-8 byte, without BOS and EOS."""
        return [i for byte in text.encode() for i in (byte >> 4, 16 + (byte & 15))]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts, each as from `encode`."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, skipping half bytes that lack their other half, which a model may generate."""
        written, high = bytearray(), -1
        for i in ids:
            if 16 <= i < 32 and high >= 0:
                written.append(high << 4 | (i - 16))
            elif i == self.vocabulary_size:
                written += b"[MASK]"
            high = i if i < 16 else -1
        return written.decode(errors="replace")

    def byte_counts(self) -> NDArray[np.int64]:
        """Return the bytes per id, int64 [34]: 1 for a high half and 0 for all others, so that a pair is one byte."""
        import numpy as np

        return (np.arange(self.vocabulary_size) < 16).astype(np.int64)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` to a folder."""
        described = json.dumps({"tokenizer": "placeholder"})
        (folder / "tokenizer.json").write_text(described, encoding="utf-8")


@component
class PlaceholderTokenizer(Tokenizer):
    """Two tokens per byte of the UTF-8 text, so that 34 ids, with BOS and EOS, encode any text."""

    name = "placeholder"
    summary = "two tokens per UTF-8 byte; 34 ids with BOS and EOS"
    refs = ()

    def train(self, documents: Callable[[], Iterator[str]]) -> HalfBytes:
        """Return the tokenizer, without reading the documents, because it needs no training."""
        return HalfBytes()

    def load(self, folder: Path) -> HalfBytes:
        """Return the tokenizer, without reading the folder, because all instances are equal."""
        return HalfBytes()


@hookimpl
def atat_zoo_tokenizer() -> list[type]:
    """Return the tokenizers in this package."""
    return [PlaceholderTokenizer]
