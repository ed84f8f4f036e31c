"""Picture files: grids of generated pictures, and the picture and the mask of an inpainting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from atat_zoo.system.errors import UserError
from atat_zoo_images.picture_corpora import nearest_colours, read_picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atat_zoo_images.pixel_tokenizer import PixelsModel

Picture: TypeAlias = "list[list[str | None]]"  # rows of colours, None for a masked pixel
MASKED = "#f0a22e"
_EDGE = 64  # rows of the drawing per picture, at least one per pixel


def write_grid(path: Path, rows: Sequence[Sequence[Picture]]) -> None:
    """Write rows of square pictures of one size to a picture file; raise a `UserError` if it cannot be written."""
    from PIL import Image

    side = len(rows[0][0])
    pixel = max(1, _EDGE // side)
    step = side * pixel + 4
    grid = np.full((step * len(rows) + 4, step * max(map(len, rows)) + 4, 3), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row):
            drawn = rgb([each for line in picture for each in line]).reshape(side, side, 3)
            top, left = step * i + 4, step * j + 4
            grid[top : top + side * pixel, left : left + side * pixel] = drawn.repeat(pixel, 0).repeat(pixel, 1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grid).save(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be written ({error}); pass a file name that ends in .png to --out") from None


def rgb(colours: Sequence[str | None]) -> NDArray[np.uint8]:
    """Return colours `#rrggbb` as uint8 [n, 3]; a masked pixel is orange."""
    return np.array([list(bytes.fromhex((each or MASKED)[1:])) for each in colours], np.uint8).reshape(-1, 3)


def ids_of_file(path: Path, tokenizer: PixelsModel, side: int) -> list[int]:
    """Return the pixels of a picture file as ids, each of the tokenizer's nearest colour."""
    ids = [i for i, each in enumerate(tokenizer.colours) if each is not None]
    colours = rgb([tokenizer.colours[i] for i in ids])
    grey = bool((colours == colours[:, :1]).all())
    pixels = read_picture(path, side, grey=grey)
    return np.array(ids)[nearest_colours(pixels, colours[:, :1] if grey else colours)].ravel().tolist()


def hidden_pixels(path: Path, side: int) -> list[bool]:
    """Return whether each pixel of a mask picture, row by row, is light, so that it is to be generated."""
    hidden = (read_picture(path, side, grey=True) >= 128).ravel().tolist()
    if not any(hidden):
        raise UserError(f"{path} has no light pixels; paint the pixels to generate white, and the given ones black")
    return hidden
