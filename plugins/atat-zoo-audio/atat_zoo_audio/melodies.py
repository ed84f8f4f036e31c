"""The corpus `melodies`, which is generated: notes with overtones, an envelope and noise."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from atat_zoo.data import SPLITS
from atat_zoo.data.corpora import Corpus
from atat_zoo.registry import component, param
from atat_zoo_audio.mu_law import levels_of, samples_at, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from atat_zoo.data import Split

LOWEST = 110.0  # Hz
SCALE = (0, 3, 5, 7, 10, 12, 15, 17, 19, 22)  # semitones above it: two octaves of a minor pentatonic scale
OVERTONES = 4
ATTACK, DECAY = 0.004, 0.04  # seconds until a note is loudest, and in which it falls to 1/e


class Sounds(NamedTuple):
    """Generated sounds: n of L samples."""

    clean: NDArray[np.float64]  # without noise, [n, L]
    noisy: NDArray[np.float64]  # within [−1, 1], [n, L]


@component
class MelodiesCorpus(Corpus):
    """Generated melodies: notes of equal length, one after another, drawn uniformly from a pentatonic scale.

    A note has a random loudness and phase, up to four partials below half of the sample rate with the amplitudes 1, ½,
    ⅓ and ¼, a short attack and an exponential decay. Gaussian noise is added. So no recording is needed, and
    `noise_bits` is a lower bound of the bits per sample of every model.
    """

    name = "melodies"
    summary = "generated melodies: notes with overtones, an envelope and noise"
    refs = ()
    licence = "generated"
    ends_documents = False

    sounds: int = param(8000, help="number of training sounds", ge=1)
    held_out: int = param(256, help="number of sounds for validation, and for testing", ge=1)
    samples: int = param(256, help="samples per sound, which should be data.length", ge=1)
    rate: int = param(2000, help="samples per second", ge=1000)
    notes: int = param(4, help="notes per sound", ge=1)
    noise: float = param(0.005, help="standard deviation of the noise; the loudest sample is 1", gt=0)
    seed: int = param(0, help="seed of the notes and of the noise", ge=0)

    @override
    def documents(self, split: Split) -> Iterator[str]:
        yield from map(text_of, self.generate(split).noisy)

    @override
    def fingerprint(self) -> dict[str, Any]:
        texts = "\n".join(text for split in SPLITS for text in self.documents(split))
        return {"sha256": hashlib.sha256(texts.encode()).hexdigest()}

    def generate(self, split: Split) -> Sounds:
        """Return the sounds of a split, which depend only on the parameters; raise a `ValueError` for another split."""
        import torch

        from atat_zoo.diffusion.randomness import fold, sequence_keys, uniform

        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}")
        rows = torch.arange(self.sounds if split == "train" else self.held_out)
        keys = sequence_keys(self.seed, f"melodies {split}", rows)
        drawn = uniform(keys, 3 * self.notes, torch.float64).view(-1, 3, self.notes).numpy()
        number = np.arange(self.samples) * self.notes // self.samples  # of the note
        pitch, loudness, phase = (drawn[:, i, number] for i in range(3))
        seconds = (np.arange(self.samples) - np.searchsorted(number, number)) / self.rate  # since the note began
        hertz = LOWEST * 2 ** (np.array(SCALE)[(pitch * len(SCALE)).astype(int)] / 12)
        partials = [
            np.where(k * hertz < self.rate / 2, np.sin(2 * np.pi * k * (hertz * seconds + phase)) / k, 0)
            for k in range(1, OVERTONES + 1)
        ]
        envelope = np.minimum(seconds / ATTACK, 1) * np.exp(-seconds / DECAY)
        clean = np.sum(partials, 0) * envelope * (0.2 + 0.3 * loudness)
        noise = torch.special.ndtri(uniform(fold(keys, 1), self.samples, torch.float64)).numpy()
        return Sounds(clean, np.clip(clean + self.noise * noise, -1, 1))

    def noise_bits(self, split: Split, levels: int) -> NDArray[np.float64]:
        """Return −log₂ p(levels | notes) / L of each sound of a split, float64 [n].

        The notes, their loudness and their phase leave only the noise to predict. Their mean, in expectation, is below
        the bits per sample of every model that does not know the notes.
        """
        from scipy.special import ndtr

        clean, noisy = self.generate(split)
        ends = samples_at(np.arange(levels + 1), levels)
        ends[0], ends[-1] = -np.inf, np.inf
        level = levels_of(noisy, levels)
        low, high = ((ends[level + i] - clean) / self.noise for i in (0, 1))
        return -np.log2(ndtr(high) - ndtr(low)).mean(1)
