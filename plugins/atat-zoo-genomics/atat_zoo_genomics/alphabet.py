"""DNA as text: an alphabet of five letters and a tokenizer with one token per letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from atat_zoo.data.tokenizers import Tokenizer
from atat_zoo.data.tokenizers.tokenizer_models import SmallModel
from atat_zoo.registry import component
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from atat_zoo.data.tokenizers import TokenizerModel

BASES = "ACGTN"
# Ids of A C G T N BOS EOS on the other strand, which is read from its other end: there, BOS is the EOS of this one.
COMPLEMENT = (3, 2, 1, 0, 4, 6, 5)
_AMBIGUOUS = "RYSWKMBDHV"  # IUPAC: two or three bases each
_FROM = BASES + "U" + _AMBIGUOUS
_TO = BASES + "T" + "N" * len(_AMBIGUOUS)
_READ = bytearray(b"?" * 256)
for _each, _base in zip(_FROM + _FROM.lower(), _TO * 2, strict=True):
    _READ[ord(_each)] = ord(_base)
_IDS = bytes(max(0, BASES.find(chr(i))) for i in range(256))


def read_bases(text: str) -> str:
    """Return a text converted to A, C, G, T and N: in upper case, with U as T and IUPAC's ambiguity codes as N.

    Raises:
        ValueError: if a character is not a base code; the message is the first such character.
    """
    found = text.encode("ascii", "replace").translate(_READ)
    if (bad := found.find(b"?")) >= 0:
        raise ValueError(text[bad])
    return found.decode("ascii")


def reverse_complement(text: str) -> str:
    """Return the reverse complement of a text in the letters A, C, G, T and N."""
    return text.translate(str.maketrans("ACGT", "TGCA"))[::-1]


@component
class DNATokenizer(Tokenizer):
    """Tokenizer with the ids 0 to 4 for A, C, G, T and N, 5 for BOS and 6 for EOS.

    Lower case, which marks repeats in genomes, is read as upper case, U as T, and IUPAC's ten codes for two or three
    bases as N. All other characters are errors. Decoding returns the letters A, C, G, T and N.
    """

    name = "dna"
    summary = "one token per base (A, C, G, T or N), and BOS and EOS"
    refs = ("doi:10.1093/nar/13.9.3021",)
    texts: ClassVar[tuple[str, ...]] = ("ACGTNNACCGT", "", "A", "GATTACA" * 9)

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer's `DNAModel`, without reading `documents`."""
        return DNAModel()

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer's `DNAModel`, or raise a `UserError` if `folder` does not contain this tokenizer."""
        return DNAModel().checked(folder)


class DNAModel(SmallModel):
    """Encoder and decoder of the tokenizer `dna`; a character that is not a base code raises a `UserError`."""

    def __init__(self) -> None:
        super().__init__([*(base.encode() for base in BASES), b"", b""], bos=5, eos=6)
        self.content = {"type": "dna", "alphabet": BASES}

    @override
    def encode(self, text: str) -> list[int]:
        try:
            return list(read_bases(text).encode().translate(_IDS))
        except ValueError as error:
            raise UserError(
                f"tokenizer 'dna' supports A, C, G, T, U, N and IUPAC's ambiguity codes, but not {error.args[0]!r}; "
                'remove that character, or use the tokenizer "bytes"'
            ) from None
