"""Spectrograms: the loudness of each frequency over time, and a picture file of several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL.Image import Image

WINDOW, TRANSFORM = 64, 256  # samples in a frame, and with zeros after them
QUIETEST = -60.0  # dB, drawn black
MOST_FRAMES, ACROSS, GAP_COLOUR = 256, 4, (240, 162, 46)
_COLOURS = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))  # as in matplotlib's magma


def spectrogram(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the loudness in dB, float64 [129, F]: frequencies from 0 to half of the sample rate, F ≤ 256 frames.

    A sine wave of amplitude 1 has 0 dB. Frames are evenly spaced, and multiplied by a Hann window.
    """
    window = np.hanning(WINDOW + 1)[:-1]
    padded = np.pad(samples, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[:: -(-len(samples) // MOST_FRAMES)]
    amplitude = np.abs(np.fft.rfft(frames * window, TRANSFORM)).T * 2 / window.sum()
    return 20 * np.log10(np.maximum(amplitude, 10 ** (QUIETEST / 20)))


def drawn(sounds: Sequence[NDArray[np.float64]], gap: tuple[int, int] | None = None) -> Image:
    """Return a picture of the spectrograms of sounds of one length, four in a row, with low frequencies below.

    An orange line below a spectrogram shows the samples from `gap[0]` to `gap[1]` − 1.
    """
    from PIL.Image import fromarray

    tiles = []
    for samples in sounds:
        share = 1 - spectrogram(samples)[::-1] / QUIETEST  # 0 for the quietest, with high frequencies first
        scale = np.linspace(0, 1, len(_COLOURS))
        pixels = np.stack([np.interp(share, scale, channel) for channel in zip(*_COLOURS, strict=True)], -1)
        line = np.full((4, *pixels.shape[1:]), 255.0)
        if gap is not None:
            first, end = (round(each / len(samples) * pixels.shape[1]) for each in gap)
            line[:, first : max(end, first + 1)] = GAP_COLOUR
        tiles.append(np.pad(np.concatenate([pixels, line]), ((4, 4), (4, 4), (0, 0)), constant_values=255))
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % min(ACROSS, len(tiles)))
    rows = [np.concatenate(tiles[row : row + ACROSS], 1) for row in range(0, len(tiles), ACROSS)]
    return fromarray(np.concatenate(rows).astype(np.uint8))


def write(path: Path, picture: Image) -> None:
    """Write a picture to a file, or raise a `UserError`."""
    try:
        picture.save(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error}); pass another folder to --out") from None
