"""The corpora `digits`, which scikit-learn contains, and `pictures`, a folder of picture files."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from atat_zoo.data import SPLITS
from atat_zoo.data.corpora import Corpus
from atat_zoo.registry import component, param
from atat_zoo.system.digests import Stamp, sha256_of_each
from atat_zoo.system.errors import UserError
from atat_zoo_images.pixel_tokenizer import picture_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from atat_zoo.data import Split

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
SAMPLE = 1024  # training pictures from which a palette is computed


@component
class DigitsCorpus(Corpus):
    """The 1,797 handwritten digits of scikit-learn: 8 × 8 pixels with 17 grey values, and the digit as label.

    They are the test part of a data set of the UCI repository (Alpaydin and Kaynak, 1998). The split is fixed, by the
    SHA-256 of each picture's number: 180 for testing, 180 for validation, and the other 1,437 for training.
    """

    name = "digits"
    summary = "scikit-learn's handwritten digits: 8 × 8 pixels, 17 grey values, ten classes"
    refs = ("doi:10.24432/C50P49",)
    licence = "CC BY 4.0"
    ends_documents = False

    label: bool = param(True, help="begin each document with the class, as in <7>")

    @override
    def documents(self, split: Split) -> Iterator[str]:
        pictures, labels = _digits()
        for i in _split(range(len(pictures)), validation=0.1, test=0.1, seed=0)[split]:
            yield picture_text(pictures[i], str(labels[i]) if self.label else "")

    @override
    def fingerprint(self) -> dict[str, Any]:
        pictures, labels = _digits()
        return {"pictures": len(pictures), "sha256": hashlib.sha256(pictures.tobytes() + bytes(labels)).hexdigest()}


@functools.cache
def _digits() -> tuple[NDArray[np.uint8], list[int]]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.round(found.images * 255 / 16).astype(np.uint8), found.target.tolist()


@component
class PicturesCorpus(Corpus):
    """Picture files in a folder and its subfolders, cropped to squares, reduced to a few pixels and colours.

    The grey values are evenly spaced. With `palette`, the colours are those that Pillow's median cut finds in the
    training pictures (in at most 1,024 of them). Only colours that occur in these pictures are used, and every pixel
    gets the nearest one. The class of a picture is the name of its folder. A share of the files, drawn by the hash of
    their path within the folder, is held out.
    """

    name = "pictures"
    summary = "a folder of picture files, in a few grey values or in a palette"
    refs = ("https://pillow.readthedocs.io",)
    ends_documents = False

    path: str = param("pictures", help="folder with picture files (png, jpg, gif, bmp, webp), also in subfolders")
    side: int = param(16, help="rows and columns to which each picture is reduced", ge=1, le=1024)
    greys: int = param(16, help="number of grey values, evenly spaced from black to white", ge=2, le=256)
    palette: int | None = param(None, help="number of colours of a palette; default: grey values", ge=2, le=256)
    label: bool = param(True, help="begin each document with the picture's class, as in <cat>")
    validation: float = param(0.1, help="fraction of the files held out for validation", ge=0, lt=1)
    test: float = param(0.1, help="fraction of the files held out for testing", ge=0, lt=1)
    seed: int = param(0, help="seed for choosing the held-out files", ge=0)

    def __attrs_post_init__(self) -> None:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test must add up to less than 1, so that training pictures are left")
        if self.palette and self.greys != 16:
            raise ValueError("greys has no effect with a palette; leave one of them out")

    @override
    def documents(self, split: Split) -> Iterator[str]:
        colours = _colours(self, repr(self.stamp()))
        for path in self.files()[split]:
            pixels = colours[nearest_colours(read_picture(path, self.side, grey=not self.palette), colours)]
            yield picture_text(pixels if self.palette else pixels[..., 0], path.parent.name if self.label else "")

    def files(self) -> dict[Split, list[Path]]:
        """Return the picture files of each split, or raise a `UserError` if the folder has none for training."""
        root = Path(self.path)
        names = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
        splits = _split(names, validation=self.validation, test=self.test, seed=self.seed)
        if not splits["train"]:
            raise UserError(
                f"corpus.path: {root} has no pictures for training ({', '.join(ENDINGS)}); name another folder"
            )
        return {split: [root / name for name in splits[split]] for split in SPLITS}

    @override
    def fingerprint(self) -> dict[str, Any]:
        every = [path for paths in self.files().values() for path in paths]
        names = [f"{path.relative_to(self.path)}\0" for path in every]
        digest = hashlib.sha256("".join([*names, *sha256_of_each([*map(Stamp.of, every)])]).encode())
        return {"pictures": len(every), "sha256": digest.hexdigest()}

    @override
    def stamp(self) -> Any:
        return {split: [Stamp.of(path) for path in paths] for split, paths in self.files().items()}


def read_picture(path: Path, size: int, *, grey: bool) -> NDArray[np.uint8]:
    """Return the square in the middle of a picture file, reduced to uint8 [size, size, 1 if `grey` else 3]."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            small = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BOX)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as a picture ({error}); remove it, or copy it again") from None
    return np.asarray(small.convert("L") if grey else small).reshape(size, size, -1)


def _split(names: Sequence[Any], *, validation: float, test: float, seed: int) -> dict[Split, list[Any]]:
    """Return the names of each split in their order: the lowest hashes are for testing, the next for validation."""
    drawn = sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    first, second = round(test * len(drawn)), round(test * len(drawn)) + round(validation * len(drawn))
    parts: dict[Split, list[Any]] = {
        "train": drawn[second:],
        "validation": drawn[first:second],
        "test": drawn[:first],
    }
    return {split: sorted(part) for split, part in parts.items()}


@functools.lru_cache(maxsize=8)
def _colours(corpus: PicturesCorpus, stamp: str) -> NDArray[np.uint8]:
    """Return the colours of a corpus, uint8 [K, 1] or [K, 3], in a fixed order; cached until `stamp` changes."""
    from PIL import Image

    del stamp
    files = corpus.files()["train"]
    some = files[:: -(-len(files) // SAMPLE)]
    pixels = np.concatenate([read_picture(path, corpus.side, grey=not corpus.palette) for path in some])
    if corpus.palette:
        found = Image.fromarray(pixels).quantize(corpus.palette, Image.Quantize.MEDIANCUT).getpalette()
        colours: NDArray[np.uint8] = np.array(found, np.uint8).reshape(-1, 3)
    else:
        colours = np.round(np.linspace(0, 255, corpus.greys)).astype(np.uint8)[:, None]
    return colours[np.unique(np.concatenate([nearest_colours(row, colours) for row in pixels]))]


def nearest_colours(pixels: NDArray[np.uint8], colours: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the index of the nearest colour of each pixel, [...] for pixels [..., C] and colours [K, C]."""
    return np.square(pixels[..., None, :].astype(np.int64) - colours).sum(-1).argmin(-1)
