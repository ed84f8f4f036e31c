"""μ-law levels, which are close together for quiet samples and far apart for loud ones, and the tokenizer `mu_law`.

A sample x in [−1, 1] has y = sign(x)·ln(1 + 255·|x|) / ln 256, and [−1, 1] is divided into equal levels of y (ITU-T
G.711, without its approximation by line segments). In a text, each sample is a Braille character: its level of 256.
"""

from __future__ import annotations

from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from atat_zoo.data.tokenizers import Tokenizer
from atat_zoo.data.tokenizers.tokenizer_models import SmallModel
from atat_zoo.registry import component, param
from atat_zoo.system.errors import UserError, clip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from atat_zoo.data.tokenizers import TokenizerModel

FIRST, LEVELS = 0x2800, 256  # the first Braille character, and their number
COLUMNS = 32  # samples in a row of the report's picture
RED, BLUE = (178, 24, 43), (33, 102, 172)  # the samples 1 and −1; 0 is white


def levels_of(samples: NDArray[Any], number: int = LEVELS) -> NDArray[np.int64]:
    """Return the level of each sample, int64 from 0 to `number` − 1; samples beyond [−1, 1] get the outer levels."""
    y = np.sign(samples) * np.log1p(255 * np.abs(samples)) / np.log(256)
    return np.clip(np.floor((y + 1) / 2 * number), 0, number - 1).astype(np.int64)


def samples_at(points: NDArray[Any], number: int) -> NDArray[np.float64]:
    """Return the samples at points on the scale of `number` levels: level k is from k to k + 1, its centre k + ½."""
    y = points * 2 / number - 1
    return np.sign(y) * np.expm1(np.abs(y) * np.log(256)) / 255


def text_of(samples: NDArray[Any]) -> str:
    """Return the text of a sound, floats from −1 to 1, with a character per sample."""
    return (levels_of(samples) + FIRST).astype("<u2").tobytes().decode("utf-16-le")


@component
class MuLawTokenizer(Tokenizer):
    """Tokenizer with 2^bits levels, each an id, from the most negative to the most positive; without BOS and EOS.

    With fewer than 8 bits, 2, 4, … neighbouring levels of a text become one token, whose text is the middle one.
    """

    name = "mu_law"
    summary = "one token per sample of a sound, one of 2 to 256 μ-law levels"
    refs = ("https://www.itu.int/rec/T-REC-G.711", "arXiv:1609.03499")
    texts: ClassVar[tuple[str, ...]] = ("".join(chr(FIRST + i) for i in (0, 127, 128, 130, 255)), "", chr(FIRST + 64))

    bits: int = param(8, help="bits per token: 8 gives 256 levels, 6 gives 64", ge=1, le=8)

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer, without reading the documents."""
        return MuLawModel(self.bits)

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer, or raise a `UserError` if `folder` has a different one."""
        return MuLawModel(self.bits).checked(folder)


class MuLawModel(SmallModel):
    """Encoder and decoder of the tokenizer `mu_law`; a text that is not a sound raises a `UserError`."""

    def __init__(self, bits: int) -> None:
        self._shift = 8 - bits
        middle = [(i << self._shift) + (1 << self._shift >> 1) for i in range(1 << bits)]
        super().__init__([chr(FIRST + each).encode() for each in middle], bos=None, eos=None)
        self.content = {"type": "mu_law", "bits": bits}
        #: The sample of each id, the centre of its level, float64 [V].
        self.samples = samples_at(np.arange(1 << bits) + 0.5, 1 << bits)

    @override
    def encode(self, text: str) -> list[int]:
        if wrong := "".join(each for each in text if not FIRST <= ord(each) < FIRST + LEVELS):
            raise UserError(
                f"tokenizer 'mu_law' reads sounds as Braille characters, one per sample, but not {clip(wrong, 40)!r}; "
                "use it with the corpora melodies and recordings"
            )
        return [(ord(each) - FIRST) >> self._shift for each in text]

    @cached_property
    def _colours(self) -> list[str | None]:
        y = (np.arange(self.vocabulary_size) * 2 + 1)[:, None] / self.vocabulary_size - 1
        shades = np.rint(255 + (np.where(y > 0, RED, BLUE) - 255) * np.abs(y)).astype(np.uint8)
        return [f"#{shade.tobytes().hex()}" for shade in shades] + [None]  # None for a mask

    @override
    def picture(self, ids: Sequence[int]) -> list[list[str | None]] | None:
        colours = [self._colours[i] for i in ids]
        return [colours[row : row + COLUMNS] for row in range(0, len(ids), COLUMNS)] or None

    @override
    def image(self, ids: Sequence[int]) -> tuple[str, bytes]:
        """Return a spectrogram of the samples, in which masks are silent."""
        from atat_zoo_audio.spectrogram import drawn

        file = BytesIO()
        drawn([np.append(self.samples, 0)[list(ids)]]).quantize(64).save(file, "png", optimize=True)
        return "Spectrogram, with low frequencies at the bottom.", file.getvalue()
