"""Pictures as text: one symbol per pixel, row by row, after an optional label; and the tokenizer `pixels`.

A grey pixel is a Braille character, whose number of dots rises with the grey value; another pixel is `#rrggbb`, as in
CSS; a label is `<name>`. The digit 7 begins with `<7>⠀⠀⠃…`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from atat_zoo.data.tokenizers import Tokenizer
from atat_zoo.data.tokenizers.tokenizer_models import FILE, SmallModel
from atat_zoo.registry import component
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo_images.grid_orders import grid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from atat_zoo.data.tokenizers import TokenizerModel

# The 256 Braille patterns by their number of dots: the symbols of the grey values 0 to 255.
GREYS = "".join(sorted(map(chr, range(0x2800, 0x2900)), key=lambda each: (ord(each) & 0xFF).bit_count()))
_SYMBOL = re.compile(r"<[^<>\n]+>|[\u2800-\u28ff]|#[0-9a-f]{6}")


def picture_text(pixels: NDArray[np.uint8], label: str = "") -> str:
    """Return the text of a picture: uint8 [H, W] for grey values, or [H, W, 3] for colours; and its label's name."""
    rows = pixels.reshape(-1, *pixels.shape[2:]).tolist()
    symbols = [GREYS[each] if isinstance(each, int) else "#{:02x}{:02x}{:02x}".format(*each) for each in rows]
    return (f"<{label}>" if label else "") + "".join(symbols)


def colour_of(symbol: str) -> str | None:
    """Return the colour of a pixel's symbol as `#rrggbb`, or None for a label."""
    return (
        None
        if symbol[0] == "<"
        else symbol
        if symbol[0] == "#"
        else f"#{GREYS.index(symbol):02x}" + (f"{GREYS.index(symbol):02x}" * 2)
    )


def symbols_of(text: str) -> list[str]:
    """Return the symbols of a text; raise a `UserError` for text that is not a picture."""
    symbols = _SYMBOL.findall(text)
    if len("".join(symbols)) != len(text):
        raise UserError(
            f"tokenizer 'pixels' reads a label such as <7>, Braille characters for grey and #rrggbb for other colours, "
            f"but not {clip(_SYMBOL.sub('', text), 40)!r}; use it with the corpora digits and pictures"
        )
    return symbols


@component
class PixelsTokenizer(Tokenizer):
    """Tokenizer with an id for each colour and label of the training pictures, without BOS and EOS.

    The colours come first, by their text, so that grey values rise with the ids; then the labels. A picture with
    another colour or label is an error. The run keeps its colours in tokenizer.json.
    """

    name = "pixels"
    summary = "one token per pixel, for the colours and labels of the training pictures"
    refs = ("arXiv:1601.06759",)
    texts: ClassVar[tuple[str, ...]] = (f"<7>{GREYS[0]}{GREYS[128]}{GREYS[255]}#0080ff", "", GREYS[0], "<8>")

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer of all symbols in the documents, or raise a `UserError` if they have no pixel."""
        symbols: set[str] = set()
        for document in documents():
            symbols.update(symbols_of(document))
        return PixelsModel(sorted(symbols, key=lambda each: (each[0] == "<", GREYS.find(each), each)))

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote, or raise a `UserError` if `folder` does not contain one."""
        path = folder / FILE
        try:
            return PixelsModel([*map(str, json.loads(path.read_text(encoding="utf-8"))["symbols"])])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a tokenizer of pixels ({error}); build the shards again") from None


class PixelsModel(SmallModel):
    """Encoder and decoder of the tokenizer `pixels` for the given symbols; a different symbol raises a `UserError`."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.colours = [colour_of(each) for each in symbols]
        if not any(self.colours):
            raise UserError("tokenizer 'pixels' found no pixel in the training pictures; check [corpus]")
        super().__init__([each.encode() for each in symbols], bos=None, eos=None)
        self.symbols, self.content = list(symbols), {"type": "pixels", "symbols": list(symbols)}
        self._ids = {symbol: i for i, symbol in enumerate(symbols)}

    @property
    def labels(self) -> dict[str, int]:
        """The names of the labels, with their ids."""
        return {symbol[1:-1]: i for symbol, i in self._ids.items() if symbol[0] == "<"}

    @override
    def encode(self, text: str) -> list[int]:
        symbols = symbols_of(text)
        for symbol in symbols:
            if symbol not in self._ids:
                raise UserError(
                    f"tokenizer 'pixels': no training picture has {symbol!r}{nearest(symbol, self.symbols)}; "
                    "use a label and colours of the training pictures"
                )
        return [self._ids[symbol] for symbol in symbols]

    @override
    def picture(self, ids: Sequence[int]) -> list[list[str | None]] | None:
        first, side = grid_of(len(ids))
        pixels = [self.colours[i] if i < self.vocabulary_size else None for i in ids[first:]]
        return [pixels[row : row + side] for row in range(0, len(pixels), side)] if side else None
