"""The 27 symbols of text8 as tokens."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Literal

from atat_zoo.errors import UserError
from atat_zoo.registry import component, param
from atat_zoo.tokenizers.tables import TableModel, check_file, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from atat_zoo.tokenizers import TokenizerModel

ALPHABET = " " + string.ascii_lowercase


@component
class Characters:
    """Space and the letters a to z: V = 27, ids 0 to 26; with `special`, BOS 27 and EOS 28."""

    name = "characters"
    summary = "text8's 27 symbols: space and a to z"
    refs = ("http://mattmahoney.net/dc/textdata.html",)

    special: bool = param(False, help="add BOS and EOS as ids 27 and 28")
    unknown: Literal["error", "space"] = param("error", help="what another character is: a mistake, or a space")

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer; there is nothing to learn."""
        return CharactersModel(special=self.special, unknown=self.unknown)

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer, after a look at the file that `save` wrote."""
        model = CharactersModel(special=self.special, unknown=self.unknown)
        check_file(folder, model.content())
        return model


class CharactersModel(TableModel):
    """The tokenizer of `Characters`."""

    def __init__(self, *, special: bool, unknown: str) -> None:
        table = [symbol.encode() for symbol in ALPHABET]
        super().__init__(
            [*table, b"", b""] if special else table, bos=27 if special else None, eos=28 if special else None
        )
        self._ids = {symbol: i for i, symbol in enumerate(ALPHABET)}
        self._special = special
        self._unknown = unknown

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            UserError: at a character that is none of the 27, unless `unknown = "space"`.
        """
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

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts."""
        return [self.encode(text) for text in texts]

    def content(self) -> dict[str, object]:
        """Return what `save` writes."""
        return {"type": "characters", "special": self._special, "unknown": self._unknown, "alphabet": ALPHABET}

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`."""
        write_file(folder, self.content())
