"""Tokenizers whose tokens are fixed byte sequences: their common base, and the two that need no library."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from atat_zoo.data.tokenizers import BOS, EOS, TokenizerModel
from atat_zoo.errors import UserError
from atat_zoo.system.parsing import refuse_halves

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
ALPHABET = " " + string.ascii_lowercase


class TableModel(TokenizerModel):
    """Half of a `TokenizerModel`: decoding by the bytes of each id, empty for BOS, EOS and ids without text."""

    def __init__(self, table: Sequence[bytes], *, bos: int | None, eos: int | None) -> None:
        self._table = [*table, b"[MASK]"]
        self.vocabulary_size, self.bos, self.eos = len(table), bos, eos

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return b"".join([self._table[i] for i in ids]).decode("utf-8", "replace")  # U+FFFD for what is not UTF-8

    @override
    def byte_counts(self) -> NDArray[np.int64]:
        return np.array([len(entry) for entry in self._table[:-1]], np.int64)


class SmallModel(TableModel):
    """A tokenizer whose `tokenizer.json` is a few settings."""

    content: dict[str, Any]

    @override
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    @override
    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    def checked(self, folder: Path) -> Self:
        """Return itself, after checking that it is the tokenizer that `save` wrote to a folder."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path} is missing; build the shards again with `atat data build`") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not readable JSON ({error}); build the shards again") from None
        if content != self.content:
            raise UserError(
                f"{path} is of another tokenizer than the experiment names: it says {_brief(content)}, "
                f"the experiment means {_brief(self.content)}; change [tokenizer] or build the shards again"
            )
        return self


class BytesModel(SmallModel):
    """The tokenizer of `bytes`."""

    def __init__(self) -> None:
        super().__init__([bytes([i]) for i in range(256)] + [b"", b""], bos=256, eos=257)
        self.content = {"type": "bytes"}

    @override
    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            refuse_halves(text, "the text")
            raise

    @cached_property
    @override
    def library(self) -> Tokenizer:
        from atat_zoo.data.tokenizers.library import of_bytes

        return of_bytes([BOS, EOS])


class CharactersModel(SmallModel):
    """The tokenizer of `characters`."""

    def __init__(self, *, special: bool, unknown: str) -> None:
        table = [symbol.encode() for symbol in ALPHABET]
        super().__init__(
            [*table, b"", b""] if special else table, bos=27 if special else None, eos=28 if special else None
        )
        self.content = {"type": "characters", "special": special, "unknown": unknown, "alphabet": ALPHABET}
        self._ids = {symbol: i for i, symbol in enumerate(ALPHABET)}
        self._unknown = unknown

    @override
    def encode(self, text: str) -> list[int]:
        ids = self._ids
        if self._unknown == "space":
            return [ids.get(symbol, 0) for symbol in text]
        try:
            return [ids[symbol] for symbol in text]
        except KeyError as error:
            raise UserError(
                f"tokenizer 'characters' knows the space and a to z, not {error.args[0]!r}; "
                'set tokenizer.unknown = "space", or take the tokenizer "bytes" or "bpe"'
            ) from None

    @cached_property
    @override
    def library(self) -> Tokenizer:
        from atat_zoo.data.tokenizers.library import of_characters

        return of_characters(
            ALPHABET, " " if self._unknown == "space" else None, [BOS, EOS][: 2 * (self.bos is not None)]
        )


def _brief(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= 80 else f"{text[:77]}..."
